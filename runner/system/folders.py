"""Makes the folders that hold numbered ones: of runs, and of sweeps."""

from __future__ import annotations

import os
from pathlib import Path

from runner.errors import Problem, RunDirectoryError


def make_container(container: Path, key: str) -> None:
    """Makes the folder of numbered ones that a setting, `key`, names.

    Raises:
      RunDirectoryError: it cannot be made.
    """
    try:
        container.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(
            Problem(
                f"{key} is {container}",
                f"it cannot be made: {error.strerror}",
                f"give {key}=... a folder that can be written",
            )
        ) from error


def way_to(path: str | None, folder: Path) -> str | None:
    """Returns the way from a folder to a path, to be kept in the folder with the path."""
    return None if path is None else os.path.relpath(path, folder)


def moved(path: str | None, way: str | None, folder: Path) -> str | None:
    """Returns the folder to which the way leads now, or the path as it was where that is none."""
    if way is None:
        return path
    end = os.path.normpath(folder.absolute() / way)
    return end if Path(end).is_dir() else path
