"""What a test may read that the super-user runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """The super-user may read everything, so the test is another user for a moment."""
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
            for each in (folder, *folder.rglob("*")):
                each.chmod(0o755)
