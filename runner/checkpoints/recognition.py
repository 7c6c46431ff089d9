"""What the formats inside zip archives share: their checksums."""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from enum import Enum

from runner.checkpoints import files
from runner.errors import CheckpointError, Problem

# A damaged archive makes zipfile raise any of these.
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    KeyError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
)

_CHUNK = 1 << 22


def checksums(archive: zipfile.ZipFile) -> Iterator[str]:
    """Yields name, size and CRC-32 of every member, from the directory of the archive alone."""
    for member in sorted(archive.infolist(), key=lambda each: each.filename):
        yield f"{member.filename} {member.file_size} {member.CRC:08x}"


def require_intact(archive: zipfile.ZipFile, name: str) -> None:
    """Reads a member through, 4 MB at a time.

    Raises:
      zipfile.BadZipFile: when its bytes do not have the CRC-32 that the archive says.
    """
    with archive.open(name) as member:
        while member.read(_CHUNK):
            pass


class Format(Enum):
    """A checkpoint format, in words."""

    BUNDLE = "TensorFlow bundle"
    V1 = "TensorFlow V1 checkpoint"
    SAVED_MODEL = "SavedModel directory"
    HDF5 = "HDF5 file of Keras"
    KERAS = ".keras archive"
    SAFETENSORS = ".safetensors"
    SAFETENSORS_INDEX = "index of sharded .safetensors"
    NPZ = ".npz"
    NPY = ".npy"


KNOWN = tuple(each.value for each in Format)

_HEAD = 1024
_TABLE_MAGIC = bytes.fromhex("57fb808b247547db")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_SHARD = re.compile(r"(.*)\.data-\d{5}-of-\d{5}")

# What people have under a checkpoint's name, by its first bytes in lower case.
_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (
        b"version https://git-lfs",
        "it is a Git LFS pointer, not the file that it stands for",
        "fetch the file with `git lfs pull`",
    ),
    (
        b"<!doctype html",
        "it is an HTML page, as a failed download leaves it",
        "download the file itself: open the address in a browser to see what it says",
    ),
    (
        b"<html",
        "it is an HTML page, as a failed download leaves it",
        "download the file itself: open the address in a browser to see what it says",
    ),
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


def recognise(path: str) -> Format:
    """Returns the format of the checkpoint at `path`.

    Args:
      path: a bundle's prefix, a file, or a SavedModel's directory.

    Raises:
      CheckpointError: when there is nothing, or something else, or it cannot be read.
    """
    try:
        # A `?` is in the prefix of sharded V1 checkpoints, as TensorFlow names them.
        if "?" in os.path.basename(path) and files.matching(*os.path.split(path)):
            return Format.V1
        if files.exists(f"{path}.index"):
            return Format.BUNDLE
        if files.is_directory(path):
            return _directory(path)
        if files.exists(path):
            return _file(path)
    except OSError as error:
        raise denied(path, error) from error
    raise CheckpointError(
        Problem(
            f"there is no checkpoint at {path}",
            "neither a file nor a directory nor a prefix",
            "mend the path",
        )
    )


def is_saved_model(directory: str) -> bool:
    """Whether a directory is a SavedModel."""
    return any(
        files.exists(os.path.join(directory, name))
        for name in ("saved_model.pb", "saved_model.pbtxt", "variables/variables.index")
    )


def _directory(path: str) -> Format:
    if is_saved_model(path):
        return Format.SAVED_MODEL
    raise CheckpointError(
        Problem(
            f"{path} is a directory, not a checkpoint",
            "it is no SavedModel",
            "name a checkpoint in it",
        )
    )


def _file(path: str) -> Format:
    size = files.size(path)
    with files.reading(path) as file:
        head = file.read(_HEAD)
        file.seek(max(0, size - len(_TABLE_MAGIC)))
        tail = file.read(len(_TABLE_MAGIC))
    if not head:
        raise _foreign(path, "it is empty: 0 bytes", "copy or download it again")
    if head.startswith(_HDF5):
        return Format.HDF5
    if head.startswith(b"PK"):
        return _archive(path)
    if head.startswith(b"\x93NUMPY"):
        return Format.NPY
    if tail == _TABLE_MAGIC:
        return _table(path)
    if _is_safetensors(head, size):
        return Format.SAFETENSORS
    if head.lstrip().startswith(b"{"):
        return _json(path)
    raise _unknown(path, head)


def _table(path: str) -> Format:
    """Tells a V1 checkpoint from the index of a bundle, which has the same container."""
    if path.endswith(".index"):
        prefix = path.removesuffix(".index")
        cause, remedy = "it is the index of a bundle", f"give the prefix instead: {prefix}"
        raise _foreign(path, cause, remedy)
    return Format.V1


def _archive(path: str) -> Format:
    try:
        with files.reading(path) as file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except ZIP_ERRORS as error:
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
    raise _foreign(path, "it is a zip archive of something else", _remedy())


def _is_safetensors(head: bytes, size: int) -> bool:
    """Whether a file begins with the length of a JSON header, and the header."""
    length = int.from_bytes(head[:8], "little")
    return 2 <= length <= size - 8 and head[8:9] == b"{"


def _json(path: str) -> Format:
    try:
        content = json.loads(files.read_text(path))
    except ValueError as error:
        raise _foreign(path, f"it begins like JSON and is damaged: {error}", _remedy()) from error
    if "weight_map" in content:
        return Format.SAFETENSORS_INDEX
    raise _foreign(path, "it is JSON without a `weight_map` of safetensors shards", _remedy())


def _unknown(path: str, head: bytes) -> CheckpointError:
    start = head.lstrip().lower()
    for prefix, cause, remedy in _FOREIGN:
        if start.startswith(prefix):
            return _foreign(path, cause, remedy)
    shard = _SHARD.fullmatch(path)
    if shard:
        return _foreign(
            path, "it is one data shard of a bundle", f"give the prefix instead: {shard[1]}"
        )
    return _foreign(path, f"it begins with {head[:8]!r}, like none of them", _remedy())


def _foreign(path: str, cause: str, remedy: str) -> CheckpointError:
    return CheckpointError(
        Problem(f"{path} is not a checkpoint of a known format", cause, remedy, KNOWN)
    )


def denied(path: str, error: OSError) -> CheckpointError:
    """Returns the error of a path that cannot be looked at."""
    forbidden = isinstance(error, PermissionError)
    remedy = "give this user the right to read it" if forbidden else "mend that"
    return CheckpointError(
        Problem(
            f"{error.filename or path} cannot be read",
            error.strerror or str(error),
            f"{remedy}, or name another checkpoint",
        )
    )


def _remedy() -> str:
    return "name a checkpoint of one of these formats"
