"""Atomic writes, and the paths of run and sweep directories that may have been moved."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runner.errors import RunDirectoryError, SaveError

# Full, over quota, too large, read-only, failing.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)

CONTINUES = (
    "make room or restore access; the same command then continues the run, with the same result"
)
# Processes tell each other paths by lines, and configurations interpolate.
_UNRECORDED = ("\n", "\r", "${")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON atomically."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True))


def write_text(path: Path, text: str, *, lasting: bool = True) -> None:
    """Writes a file atomically, by renaming: it has the old or the new content, never a mix.

    Args:
      path: the file.
      text: its content.
      lasting: whether the content must survive a crash of the machine too.
    """
    # Processes that search together write the same files at their end.
    temporary = path.with_name(f"{path.name}.{_writer()}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def require_absent(path: Path, remedy: str = "move it away to write it again") -> None:
    """Raises a RunDirectoryError if a file or folder exists, because nothing is overwritten."""
    if path.exists():
        raise RunDirectoryError.of(f"{path} exists", "nothing is overwritten", remedy)


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """Provides a path for a file or folder that appears as `target` when the block is complete.

    Raises:
      SaveError: as `disk_errors`.
    """
    prefix = f".unfinished-{_writer()}-"
    with disk_errors(target.parent, "make room or restore access, and repeat the command"):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as folder:
            path = Path(folder) / target.name
            yield path
            path.rename(target)


def _writer() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def remove_leftovers(folder: Path) -> None:
    """Removes what `write_text` and `unfinished` left in a folder when they were killed.

    Of processes of other machines, which may live, everything stays.
    """
    import psutil  # Commands that write nothing need not wait for it.

    host = re.escape(socket.gethostname())
    temporary = re.compile(rf"\.unfinished-{host}-(\d+)-\w+|.+\.{host}-(\d+)\.tmp")
    for path in folder.iterdir() if folder.is_dir() else ():
        name = temporary.fullmatch(path.name)
        if name is None or psutil.pid_exists(int(name[1] or name[2])):
            continue
        with suppress(OSError):  # Another process removes it too, or the folder is read-only.
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def disk_errors(folder: Path, remedy: str = CONTINUES) -> Iterator[None]:
    """Reports that a folder cannot be written, because the disk is full for example.

    Raises:
      SaveError: in place of an OSError of the disk, or of a file in the folder.
    """
    try:
        yield
    except OSError as error:
        file = Path(error.filename) if isinstance(error.filename, str) else folder
        hidden = (path for path in (file, *file.parents) if path.name.startswith(".unfinished-"))
        file = next((path.parent for path in hidden), file)
        in_folder = error.filename is not None and file.absolute().is_relative_to(folder.absolute())
        if not in_folder and error.errno not in _DISK_ERRORS:
            raise
        raise SaveError.of(
            f"{file} cannot be written",
            error.strerror or str(error),
            remedy,
        ) from error


def sync_to_disk(*paths: Path) -> None:
    """Waits until files and directories are on the disk, whichever process wrote them."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_container(container: Path, key: str) -> None:
    """Creates the directory that a setting, `key`, names for numbered run or sweep directories.

    Raises:
      RunDirectoryError: it cannot be created, or its path not be recorded.
    """
    path = str(container.absolute())
    if any(text in path for text in _UNRECORDED):
        raise RunDirectoryError.of(
            f"{key} is {path!r}",
            "a path with a line break or a ${ is read back as something else",
            f"rename the folder, or name another one: {key}=...",
        )
    try:
        container.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError.of(
            f"{key} is {container}",
            f"it cannot be created: {error.strerror}",
            f"give {key}=... a folder that can be written",
        ) from error


def numbered_folders(container: Path) -> list[Path]:
    """Returns the folders in a container whose names are numbers, the highest number first."""
    numbered = [path for path in container.glob("*") if path.name.isdecimal()]
    return sorted(numbered, key=lambda path: int(path.name), reverse=True)


def next_numbered_folder(container: Path) -> Path:
    """Returns the path in a container that follows its highest number, such as `CONTAINER/003`."""
    newest = next(iter(numbered_folders(container)), None)
    return container / f"{int(newest.name) + 1 if newest else 1:03d}"


def relative_path(path: str | None, folder: Path) -> str | None:
    """Returns a path relative to a folder; a file in that folder records both."""
    return None if path is None else os.path.relpath(path, folder)


def resolve_moved(path: str | None, relative: str | None, folder: Path) -> str | None:
    """Returns where a recorded directory is now, after both it and `folder` may have been moved.

    Args:
      path: the recorded path.
      relative: the recorded path relative to `folder`; None where `path` is.
      folder: the folder of the record.
    """
    if relative is None:
        return path
    resolved = os.path.normpath(folder.absolute() / relative)
    return resolved if Path(resolved).is_dir() else path
