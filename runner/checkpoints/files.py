"""Files on this machine through `os`, those behind a scheme such as `gs://` through TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from runner.checkpoints.reader import CheckpointReader, CheckpointSpec
from runner.errors import CheckpointError, Problem


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


CACHE = "RUNNER_CACHE"
_CHUNK = 1 << 22


def cache_directory() -> Path:
    """Returns where copies are kept: `$RUNNER_CACHE`, by default `~/.cache/runner`.

    Every file in it can be deleted at any time between runs.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.environ.get(CACHE) or os.path.join(home, "runner"))


def local_copy(path: str) -> str:
    """Returns `path`, or for a remote file the path of its copy on this machine.

    A file is copied again when its size or time of change is another.

    Raises:
      CheckpointError: when it cannot be copied.
    """
    if not is_remote(path):
        return path

    def copy(folder: Path) -> None:
        target = folder / os.path.basename(path)
        with reading(path) as source, target.open("wb") as copied:
            shutil.copyfileobj(source, copied, _CHUNK)

    try:
        return str(cached(f"{path} {stamp(path)}", copy) / os.path.basename(path))
    except OSError as error:
        raise CheckpointError(
            Problem(
                f"{path} cannot be copied to {cache_directory()}",
                str(error),
                f"mend the path, or set {CACHE} to a folder with room for the file",
            )
        ) from error


def through_copy(path: str, open_file: Callable[[str], CheckpointReader]) -> CheckpointReader:
    """Returns the reader that `open_file` gives of a file or of a remote file's copy.

    Raises:
      CheckpointError: when the file cannot be copied or opened.
    """
    if not is_remote(path):
        return open_file(path)
    return _CopyReader(path, open_file(local_copy(path)))


class _CopyReader(CheckpointReader):
    """Reads a copy under the name of the original."""

    def __init__(self, path: str, copy: CheckpointReader) -> None:
        self._path, self._copy = path, copy

    def spec(self) -> CheckpointSpec:
        return dataclasses.replace(self._copy.spec(), path=self._path)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        return self._copy.read(names)


def cached(key: str, fill: Callable[[Path], None]) -> Path:
    """Returns the folder of the cache that `fill` has filled, now or earlier, for `key`.

    A folder appears only when it is complete; two processes fill it once.
    """
    folder = cache_directory() / hashlib.sha256(key.encode()).hexdigest()[:32]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            fill(partial)
            partial.replace(folder)
    return folder
