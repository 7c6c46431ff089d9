"""Opens a checkpoint of any format, or the mean of several."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.formats import Format, recognise
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, RenamedReader, TensorSpec
from runner.errors import CheckpointError, Problem

# Libraries other than TensorFlow read these, and only files on this machine.
_THROUGH_COPY = (Format.HDF5, Format.KERAS, Format.SAFETENSORS, Format.NPZ, Format.NPY)


def open_checkpoint(path: str, digest: str | None = None) -> CheckpointReader:
    """Returns the reader of the checkpoint at `path`; the format is recognised from content.

    Args:
      path: a bundle's prefix, a file, or a SavedModel's directory, as `locate.resolve` returns it;
        also of a file system that `tf.io.gfile` opens.
      digest: the digest that the content must have, from the spec it was pinned by.

    Raises:
      CheckpointError: when the format is not known, the file cannot be read, or the digest is
        another.
    """
    found = recognise(path)
    if digest is not None and found is Format.HDF5:
        # The HDF5 library can hang on damaged bytes, so it does not get to see them.
        _require_digest(path, files.digest_of_file(files.local_copy(path)), digest)
    reader = _reader(found, path)
    if digest is not None:
        _require_digest(path, reader.spec().digest, digest)
    return reader


def open_pinned(pinned: Sequence[tuple[str, str]]) -> CheckpointReader:
    """Returns the reader of what `locate.resolve` gave: one checkpoint, or an average of several.

    Raises:
      CheckpointError: when one of them cannot be opened, or has another digest.
    """
    readers = [open_checkpoint(path, digest) for path, digest in pinned]
    return readers[0] if len(readers) == 1 else AverageReader(readers)


def _reader(form: Format, path: str) -> CheckpointReader:
    _, module, opener = form.value
    reader = getattr(importlib.import_module(f"runner.checkpoints.{module}"), opener)
    if files.is_remote(path) and form in _THROUGH_COPY:
        return RenamedReader(reader(files.local_copy(path)), path=path)
    return cast(CheckpointReader, reader(path))


def _require_digest(path: str, found: str, pinned: str) -> None:
    if found != pinned:
        raise CheckpointError(
            Problem(
                f"{path} is not the checkpoint that was pinned",
                f"its digest is {found}, the pinned one {pinned}",
                "restore the file from a copy, or plan again with the file as it is",
            )
        )


class AverageReader(CheckpointReader):
    """Reads the mean of the tensors of one or more checkpoints, given oldest first.

    Floating-point tensors are averaged in float64, complex ones in complex128, and returned in
    their own dtype. All others (integers such as the global step, booleans, strings) have no
    meaningful mean and are taken from the last checkpoint, whatever the others hold.
    """

    def __init__(self, readers: Sequence[CheckpointReader]) -> None:
        self.readers = tuple(readers)

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec` and `averaged`."""
        return averaged([reader.spec() for reader in self.readers])

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`; a sum and one more tensor are in memory at a time."""
        *others, last = self.readers
        tensors = last.spec().tensors
        averaged = [name for name in names if name in tensors and _has_mean(tensors[name].dtype)]
        newest = last.read(names)
        streams = [*(other.read(averaged) for other in others), newest]
        with_mean = frozenset(averaged)
        for name in names:
            if name in with_mean:
                yield name, _mean(next(stream)[1] for stream in streams)
            else:
                yield next(newest)


def averaged(specs: Sequence[CheckpointSpec]) -> CheckpointSpec:
    """Returns the spec of the average of checkpoints: the last's, with a path that lists all.

    Raises:
      CheckpointError: when they differ in names, shapes or dtypes of what is averaged.
    """
    problems = [found for spec in specs[:-1] for found in _differences(spec, specs[-1])]
    if problems:
        raise CheckpointError(*problems)
    return replace(
        specs[-1],
        path=f"average of {len(specs)}: {', '.join(spec.path for spec in specs)}",
        format=f"average of {len(specs)} x {specs[-1].format}",
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


def _has_mean(dtype: str) -> bool:
    return "float" in dtype or "complex" in dtype


def _differences(spec: CheckpointSpec, last: CheckpointSpec) -> list[Problem]:
    found = []
    for name in sorted({*spec.tensors, *last.tensors}):
        one, other = spec.tensors.get(name), last.tensors.get(name)
        has_mean = any(each is not None and _has_mean(each.dtype) for each in (one, other))
        if has_mean and one != other:
            found.append(
                Problem(
                    f"{spec.path} and {last.path} cannot be averaged: {name} is "
                    f"{_describe(one)} in the first and {_describe(other)} in the second",
                    "an average is of checkpoints with the same tensors",
                    "average checkpoints of one run, saved by one version of the model",
                )
            )
    return found


def _describe(tensor: TensorSpec | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
