"""Gives up the rights of the super-user for a moment, and mounts disks with them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Makes the test another user for a moment, as the super-user may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextlib.contextmanager
def folder_for_all() -> Iterator[Path]:
    """Gives a folder that every user may enter, which pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            yield folder
        finally:
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o755)


@contextlib.contextmanager
def mounted(place: Path, size: str) -> Iterator[Path]:
    """Gives a new file system of a size such as `1m`, or skips the test."""
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs rights that this process does not have")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
