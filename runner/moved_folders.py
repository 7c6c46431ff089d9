"""Paths in files that still lead there when both ends have been moved or copied together."""

from __future__ import annotations

import os
from pathlib import Path


def way_to(path: str | None, folder: Path) -> str | None:
    """Returns the way from a folder to a path, to be kept in the folder with the path."""
    return None if path is None else os.path.relpath(path, folder)


def moved(path: str | None, way: str | None, folder: Path) -> str | None:
    """Returns the folder to which the way leads now, or the path as it was where that is none."""
    if way is None:
        return path
    end = os.path.normpath(folder.absolute() / way)
    return end if Path(end).is_dir() else path
