"""Recognises the format of a checkpoint from its content; opens it, or the mean of several."""

from __future__ import annotations

import importlib
import json
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import cast

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.reader import (
    DAMAGE,
    CheckpointReader,
    CheckpointSpec,
    RenamedReader,
    TensorSpec,
)
from runner.errors import CheckpointError, Problem


class Format(Enum):
    """A checkpoint format: its name, and the module and the function or class that open it.

    The module is imported when a checkpoint of its format is opened, because TensorFlow and h5py
    take seconds to import.
    """

    BUNDLE = ("TensorFlow bundle", "bundle", "open_bundle")
    V1 = ("TensorFlow V1 checkpoint", "bundle", "V1Reader")
    SAVED_MODEL = ("SavedModel directory", "bundle", "open_saved_model")
    HDF5 = ("HDF5 file of Keras", "keras_files", "open_hdf5")
    KERAS = (".keras archive", "keras_files", "KerasArchiveReader")
    SAFETENSORS = (".safetensors", "array_files", "SafetensorsReader")
    SAFETENSORS_INDEX = ("index of sharded .safetensors", "array_files", "SafetensorsShardsReader")
    NPZ = (".npz", "array_files", "NpzReader")
    NPY = (".npy", "array_files", "NpyReader")

    def open(self, path: str) -> CheckpointReader:
        """Returns the reader of the checkpoint of this format at `path`."""
        _, module, opener = self.value
        reader = getattr(importlib.import_module(f"runner.checkpoints.{module}"), opener)
        if files.is_remote(path) and self in _THROUGH_COPY:
            return RenamedReader(reader(files.local_copy(path)), path=path)
        return cast(CheckpointReader, reader(path))


# Libraries other than TensorFlow read these, and only files on this machine.
_THROUGH_COPY = (Format.HDF5, Format.KERAS, Format.SAFETENSORS, Format.NPZ, Format.NPY)
KNOWN = tuple(form.value[0] for form in Format)

# What ends the tables that TensorFlow's V1 checkpoints and the indices of its bundles are.
TABLE_MAGIC = bytes.fromhex("57fb808b247547db")
_HEAD = 1024
_HDF5 = b"\x89HDF\r\n\x1a\n"
_SHARD = re.compile(r"(.*)\.data-\d{5}-of-\d{5}")
_REMEDY = "name a checkpoint of one of these formats"

_HTML = (
    "it is an HTML page, as a failed download leaves it",
    "download the file itself: open the address in a browser to see the page",
)
# What people have under a checkpoint's name, by its first bytes in lower case.
_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (
        b"version https://git-lfs",
        "it is a Git LFS pointer, not the file that it stands for",
        "fetch the file with `git lfs pull`",
    ),
    (b"<!doctype html", *_HTML),
    (b"<html", *_HTML),
    (b"<?xml", "it is XML, as a failed download leaves it", "download the file itself"),
    (b"\x1f\x8b", "it is compressed by gzip", "unpack it with gunzip or tar"),
    (b"bzh", "it is compressed by bzip2", "unpack it with bunzip2 or tar"),
    (b"\xfd7zxz", "it is compressed by xz", "unpack it with unxz or tar"),
    (b"model_checkpoint_path:", "it only names a checkpoint", "give its directory instead"),
    (
        b"\x80",
        "it is pickled, and to load a pickle is to run whatever code is in it",
        "where you trust the file, load it yourself and save its arrays: np.savez(path, **arrays)",
    ),
)


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
    reader = found.open(path)
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


def _require_digest(path: str, found: str, pinned: str) -> None:
    if found != pinned:
        raise CheckpointError(
            Problem(
                f"{path} is not the checkpoint that was pinned",
                f"its digest is {found}, the pinned one {pinned}",
                "restore the file from a copy, or plan again with the file as it is",
            )
        )


def recognise(path: str) -> Format:
    """Returns the format of the checkpoint at `path`: a prefix, a file or a SavedModel's directory.

    Raises:
      CheckpointError: when there is nothing, or something else, or it cannot be read.
    """
    try:
        if files.exists(f"{path}.index"):
            return Format.BUNDLE
        if is_v1(path):
            return Format.V1
        if files.is_directory(path):
            if is_saved_model(path):
                return Format.SAVED_MODEL
            raise _foreign(path, "it is a directory, not a SavedModel", "name a checkpoint in it")
        if files.exists(path):
            return _file(path)
    except OSError as error:
        raise denied(path, error) from error
    raise CheckpointError(
        Problem(
            f"there is no checkpoint at {path}",
            "neither a file nor a directory nor a prefix",
            "correct the path",
        )
    )


def is_saved_model(directory: str) -> bool:
    """Whether a directory is a SavedModel."""
    return any(
        files.exists(os.path.join(directory, name))
        for name in ("saved_model.pb", "saved_model.pbtxt", "variables/variables.index")
    )


def is_v1(path: str) -> bool:
    """Whether `path` is a V1 checkpoint: a file, or the pattern that stands for its shards."""
    directory, name = os.path.split(path)
    if "?" in name:
        return bool(files.matching(directory, name))
    is_table = files.is_file(path) and files.read_end(path, len(TABLE_MAGIC)) == TABLE_MAGIC
    return is_table and not path.endswith(".index")


def _file(path: str) -> Format:
    with files.reading(path) as file:
        head = file.read(_HEAD)
    if not head:
        raise _foreign(path, "it is empty: 0 bytes", "copy or download it again")
    if head.startswith(_HDF5):
        return Format.HDF5
    if head.startswith(b"PK"):
        return _archive(path)
    if head.startswith(b"\x93NUMPY"):
        return Format.NPY
    if path.endswith(".index") and files.read_end(path, len(TABLE_MAGIC)) == TABLE_MAGIC:
        remedy = f"give the prefix instead: {path.removesuffix('.index')}"
        raise _foreign(path, "it is the index of a bundle", remedy)
    # A safetensors file begins with the length of a JSON header, and the header.
    if 2 <= int.from_bytes(head[:8], "little") <= files.size(path) - 8 and head[8:9] == b"{":
        return Format.SAFETENSORS
    if head.lstrip().startswith(b"{"):
        return _json(path)
    raise _unknown(path, head)


def _archive(path: str) -> Format:
    try:
        with files.reading(path) as file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except DAMAGE as error:
        cause = f"it begins like a zip archive and is damaged: {error}"
        raise _foreign(path, cause, "copy or download it again") from error
    if "model.weights.h5" in names:
        return Format.KERAS
    if names and all(name.endswith(".npy") for name in names):
        return Format.NPZ
    if any(name.endswith("data.pkl") for name in names):
        raise _foreign(
            path,
            "it is a PyTorch file, which is pickled, and to load a pickle is to run its code",
            "save it as safetensors with PyTorch: safetensors.torch.save_file(state_dict, path)",
        )
    raise _foreign(path, "it is a zip archive of something else", _REMEDY)


def _json(path: str) -> Format:
    try:
        content = json.loads(files.read_text(path))
    except ValueError as error:
        raise _foreign(path, f"it begins like JSON and is damaged: {error}", _REMEDY) from error
    if "weight_map" in content:
        return Format.SAFETENSORS_INDEX
    raise _foreign(path, "it is JSON without a `weight_map` of safetensors shards", _REMEDY)


def _unknown(path: str, head: bytes) -> CheckpointError:
    start = head.lstrip().lower()
    for prefix, cause, remedy in _FOREIGN:
        if start.startswith(prefix):
            return _foreign(path, cause, remedy)
    shard = _SHARD.fullmatch(path)
    if shard:
        remedy = f"give the prefix instead: {shard[1]}"
        return _foreign(path, "it is one data shard of a bundle", remedy)
    return _foreign(path, f"it begins with {head[:8]!r}, like none of them", _REMEDY)


def _foreign(path: str, cause: str, remedy: str) -> CheckpointError:
    return CheckpointError(
        Problem(f"{path} is not a checkpoint of a known format", cause, remedy, KNOWN)
    )


def denied(path: str, error: OSError) -> CheckpointError:
    """Returns the error of a path that cannot be looked at."""
    forbidden = isinstance(error, PermissionError)
    remedy = "give this user the right to read it" if forbidden else "correct that"
    return CheckpointError(
        Problem(
            f"{error.filename or path} cannot be read",
            error.strerror or str(error),
            f"{remedy}, or name another checkpoint",
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
    return CheckpointSpec(
        f"average of {len(specs)}: {', '.join(spec.path for spec in specs)}",
        specs[-1].step,
        specs[-1].tensors,
        f"average of {len(specs)} x {specs[-1].format}",
        files.digest_of_parts(spec.digest for spec in specs),
        specs[-1].aliases,
        specs[-1].layers,
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
