"""Copies remote files once to a cache on this machine, for libraries that read local files only."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec
from runner.errors import CheckpointError, Problem

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
    if not files.is_remote(path):
        return path

    def copy(folder: Path) -> None:
        target = folder / os.path.basename(path)
        with files.reading(path) as source, target.open("wb") as copied:
            shutil.copyfileobj(source, copied, _CHUNK)

    try:
        return str(cached(f"{path} {files.stamp(path)}", copy) / os.path.basename(path))
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
    if not files.is_remote(path):
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
