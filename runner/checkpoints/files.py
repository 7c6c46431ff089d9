"""Files on this machine through `os`, those behind a scheme such as `gs://` through TensorFlow."""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Iterator
from typing import Any, BinaryIO


def is_remote(path: str) -> bool:
    """Whether `path` has a scheme, e.g. `gs://bucket/file`, so that TensorFlow must open it."""
    return "://" in path


def exists(path: str) -> bool:
    """Whether there is a file or directory at `path`."""
    if not is_remote(path):
        return os.path.exists(path)
    with _gfile(path) as gfile:
        return bool(gfile.exists(path))


def is_directory(path: str) -> bool:
    """Whether `path` is a directory."""
    if not is_remote(path):
        return os.path.isdir(path)
    with _gfile(path) as gfile:
        return bool(gfile.isdir(path))


def is_file(path: str) -> bool:
    """Whether `path` is there and no directory."""
    return exists(path) and not is_directory(path)


def names_in(directory: str) -> list[str]:
    """Returns the names of what is in a directory, sorted, without trailing slashes.

    Raises:
      OSError: when it cannot be listed.
    """
    if not is_remote(directory):
        return sorted(os.listdir(directory or "."))
    with _gfile(directory) as gfile:
        return sorted(name.rstrip("/") for name in gfile.listdir(directory))


def matching(directory: str, pattern: str) -> list[str]:
    """Returns the paths of what is in `directory` under a name that matches the glob `pattern`."""
    if not is_directory(directory or "."):
        return []
    return [os.path.join(directory, name) for name in fnmatch.filter(names_in(directory), pattern)]


def size(path: str) -> int:
    """Returns a file's size in bytes.

    Raises:
      OSError: when there is no such file.
    """
    if not is_remote(path):
        return os.stat(path).st_size
    with _gfile(path) as gfile:
        return int(gfile.stat(path).length)


def stamp(path: str) -> str:
    """Returns what changes when a file is replaced: its size and time of change.

    Raises:
      OSError: when there is no such file.
    """
    if not is_remote(path):
        status = os.stat(path)
        return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
    with _gfile(path) as gfile:
        remote = gfile.stat(path)
        return f"{remote.length}:{remote.mtime_nsec}"


@contextlib.contextmanager
def reading(path: str) -> Iterator[BinaryIO]:
    """Opens a file for reading bytes.

    Raises:
      OSError: when it cannot be opened or read.
    """
    if not is_remote(path):
        with open(path, "rb") as file:
            yield file
        return
    with _gfile(path) as gfile, gfile.GFile(path, "rb") as remote:
        yield remote


def read_text(path: str) -> str:
    """Returns a file's content.

    Raises:
      OSError: when it cannot be read.
      UnicodeDecodeError: when it is not UTF-8.
    """
    with reading(path) as file:
        return file.read().decode()


@contextlib.contextmanager
def _gfile(path: str) -> Iterator[Any]:
    """Gives `tf.io.gfile`, whose errors about `path` become OSErrors."""
    # Importing TensorFlow takes seconds, which files on this machine do not need.
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.OpError as error:
        raise OSError(f"{path}: {error.message or type(error).__name__}") from error
