"""Kills a process at an operation that changes files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# By the names of Python's audit events.
_OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")


class Killed(BaseException):
    """Stands for SIGKILL in a process: no code that handles errors takes it for one."""


def _raise() -> None:
    raise Killed


@dataclass
class _Kills:
    """Kills in place of one operation that changes files below a folder.

    A file that is about to be written from its beginning then has a part of its content.
    """

    folder: str = ""
    left: int = 0
    kill: Callable[[], object] = _raise
    last: str = ""

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.folder or event not in _OPERATIONS:
            return
        path = arguments[0]
        if not isinstance(path, str | os.PathLike):
            return
        file = Path(os.path.abspath(path))
        flags = int(arguments[2]) if event == "open" else os.O_WRONLY
        if not file.is_relative_to(self.folder) or not flags & (os.O_WRONLY | os.O_RDWR):
            return
        self.left -= 1
        if self.left < 0:
            self.folder, self.last = "", f"{event} {file}"
            # `tempfile` opens a file without a name by that of its folder.
            if flags & os.O_TRUNC and not file.is_dir():
                file.write_bytes(b"half")
            self.kill()


KILLS = _Kills()
sys.addaudithook(KILLS)  # For the life of the process: there is no way to remove one.


def kill_at(folder: Path, operation: int, kill: Callable[[], object]) -> None:
    """Has `kill` called at an operation that changes files in a folder, after so many others."""
    KILLS.folder, KILLS.left, KILLS.kill = str(folder), operation, kill


@contextmanager
def killed_at(folder: Path, operation: int) -> Iterator[None]:
    """Raises `Killed` at such an operation of the block."""
    kill_at(folder, operation, _raise)
    try:
        yield
    finally:
        KILLS.folder = ""
