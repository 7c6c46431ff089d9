"""Tells whether somebody holds a lock that a file stands for."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout


def is_held(lock_file: Path) -> bool:
    """Whether a living process, this one included, holds the lock; its file is made if absent."""
    try:
        with FileLock(lock_file, timeout=0):
            return False
    except Timeout:
        return True
