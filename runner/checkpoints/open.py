"""Opens a checkpoint of any format, or the mean of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, RenamedReader, TensorSpec
from runner.checkpoints.recognition import Format, recognise, split_mapping
from runner.errors import CheckpointError


def open_reader(path: str, digest: str | None = None) -> CheckpointReader:
    """Returns the reader of the checkpoint at `path`, whose format is recognised from content.

    Args:
      path: a bundle's prefix, a file, or a SavedModel's directory, as `locate.checkpoint_paths`
        returns it, on any file system that fsspec opens.
      digest: the digest that the content must have, or None.

    Raises:
      CheckpointError: when the format is unknown, the file cannot be read, or the digest differs.
    """
    file, mapping = split_mapping(path)
    form = recognise(file)
    if mapping and form is not Format.TORCH:
        raise CheckpointError.of(
            f"{path} names the mapping {mapping!r} in a {form.title}",
            "only PyTorch files hold several",
            f"name the checkpoint without it: {file}",
        )
    if digest is not None and form is Format.HDF5:
        # The HDF5 library can hang on damaged bytes, so it never sees them.
        _require_digest(path, files.digest_of_file(files.local_copy(path)), digest)
    reader = _reader(form, file, *([mapping] if mapping else []))
    if digest is not None:
        _require_digest(path, reader.spec().digest, digest)
    return reader


def open_pinned(pinned: Sequence[tuple[str, str]]) -> CheckpointReader:
    """Returns the reader of one pinned checkpoint, or of the average of several.

    Args:
      pinned: (path, digest) of the checkpoints that `locate.checkpoint_paths` returned.

    Raises:
      CheckpointError: when one of them cannot be opened, or has another digest.
    """
    readers = [open_reader(path, digest) for path, digest in pinned]
    return readers[0] if len(readers) == 1 else AverageReader(readers)


def _reader(form: Format, path: str, *mapping: str) -> CheckpointReader:
    if form is Format.SHARDS or not files.is_remote(path):  # Shards are copied one by one.
        return form.open(path, *mapping)
    copy = files.local_copy(path)
    return RenamedReader(form.open(copy, *mapping), copy, path)


def _require_digest(path: str, digest: str, pinned: str) -> None:
    if digest != pinned:
        raise CheckpointError.of(
            f"{path} is not the checkpoint that was pinned",
            f"its digest is {digest}, the pinned one {pinned}",
            "restore the file from a copy, or plan again with the file as it is",
        )


class AverageReader(CheckpointReader):
    """Reads the mean of the tensors of one or more checkpoints, oldest first.

    Floating-point tensors are averaged in float64, complex ones in complex128, and returned in
    their dtype. All others (integers such as the global step, booleans, strings) have no
    meaningful mean and come from the last checkpoint, even if the other checkpoints lack them.
    """

    def __init__(self, readers: Sequence[CheckpointReader]) -> None:
        self.readers = tuple(readers)

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec` and `averaged`."""
        return averaged([reader.spec() for reader in self.readers])

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`; holds a sum and one more tensor in memory at a time."""
        *others, last = self.readers
        tensors = last.spec().tensors
        with_mean = {name for name in names if _has_mean(tensors.get(name))}
        shared = [name for name in names if name in with_mean]
        newest = last.read(names)
        streams = [*(other.read(shared) for other in others), newest]
        for name in names:
            if name in with_mean:
                yield name, _mean(next(stream)[1] for stream in streams)
            else:
                yield next(newest)


def averaged(specs: Sequence[CheckpointSpec]) -> CheckpointSpec:
    """Returns the spec of an average of checkpoints: the last one's, with a path that lists all.

    Raises:
      CheckpointError: when the averaged tensors differ in name, shape or dtype.
    """
    last = specs[-1]
    for spec in specs[:-1]:
        _require_alike(spec, last)
    return replace(
        last,
        path=f"average of {len(specs)}: {', '.join(spec.path for spec in specs)}",
        format=f"average of {len(specs)} x {last.format}",
        content=lambda: files.digest_of_parts(spec.digest for spec in specs),
    )


def _mean(values: Iterator[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Returns the mean of arrays that come one at a time."""
    first = next(values)
    dtype = first.dtype
    total, count = first.astype(np.result_type(dtype, np.float64)), 1
    del first
    for value in values:
        total += value.astype(total.dtype, copy=False)
        count += 1
    total /= count
    return total.astype(dtype)


def _has_mean(tensor: TensorSpec | None) -> bool:
    return tensor is not None and ("float" in tensor.dtype or "complex" in tensor.dtype)


def _require_alike(spec: CheckpointSpec, last: CheckpointSpec) -> None:
    """Raises a `CheckpointError` if tensors that have a mean differ in name, shape or dtype."""
    differing = [
        name
        for name in sorted({*spec.tensors, *last.tensors})
        if spec.tensors.get(name) != last.tensors.get(name)
        and (_has_mean(spec.tensors.get(name)) or _has_mean(last.tensors.get(name)))
    ]
    if differing:
        raise CheckpointError.of(
            f"{spec.path} and {last.path} cannot be averaged",
            f"they differ in the presence, shape or dtype of {', '.join(differing)}",
            "average checkpoints of one run, saved by one version of the model",
        )
