"""Locks that a process holds, and the heartbeat by which other hosts see that it lives."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from runner.system.atomic_files import write_text

logger = logging.getLogger(__name__)


def this_process() -> str:
    """Returns the name of this process among all hosts."""
    return process_name(os.getpid())


def process_name(number: int) -> str:
    """Returns the name, among all hosts, of a process of this one."""
    return f"{socket.gethostname()}:{number}"


def is_held(lock_file: Path) -> bool:
    """Whether a living process, this one included, holds the lock; creates its file if absent."""
    try:
        with FileLock(lock_file, timeout=0):
            return False
    except Timeout:
        return True


# A wait for longer says what it waits for.
_QUIET_SECONDS = 10.0


class LongWait:
    """Says on standard error, once, after ten seconds, what this process waits for.

    Args:
      purpose: what it is, as in `waiting for PURPOSE`.
    """

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._due: float | None = time.monotonic() + _QUIET_SECONDS

    def poll(self) -> None:
        """Says it if that is due; to be called again and again while waiting."""
        if self._due is not None and time.monotonic() >= self._due:
            self._due = None
            _say_waiting(self._purpose)


def _say_waiting(purpose: str) -> None:
    print(f"waiting for {purpose}", file=sys.stderr, flush=True)


@contextmanager
def locked(lock: BaseFileLock | Path | str, purpose: str) -> Iterator[None]:
    """Holds a lock inside the block; waits for as long as another process holds it.

    Args:
      lock: the lock, or its file.
      purpose: what the lock is for, to say after ten seconds, as in `waiting for PURPOSE`.
    """
    lock = lock if isinstance(lock, BaseFileLock) else FileLock(lock)
    acquire_saying(lock, purpose)
    try:
        yield
    finally:
        lock.release()


def acquire_saying(lock: BaseFileLock, purpose: str) -> None:
    """Acquires a lock, and says after ten seconds that it waits, and for which file."""
    try:
        lock.acquire(timeout=_QUIET_SECONDS)
    except Timeout:
        _say_waiting(f"{purpose}: another process holds {lock.lock_file}")
        lock.acquire()


BEAT_SECONDS = 4.0
# A process that has the processor to itself never misses so many beats.
_MISSED = 3
# How often a process on another host checks for a beat, while one is due.
_CHECKS = 8
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Owner:
    """A process, owner `since` a time in UTC; `boot` identifies the start of its host, if known."""

    host: str
    boot: str
    pid: int
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"

    def is_here(self) -> bool:
        """Whether the process is on this host, whose locks it holds."""
        boot = _boot()
        return self.boot == boot if boot and self.boot else self.host == socket.gethostname()


class OwnerFile:
    """A file that names the owner of a run while it owns it; touched every `beat` seconds.

    Not every shared file system carries locks from host to host. The owner therefore touches the
    file regularly, its heartbeat: a process on another host waits to see whether it continues.
    Times are compared with the file system's own, never with a clock of either host.
    """

    def __init__(
        self, path: Path, beat: float = BEAT_SECONDS, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._path, self._beat, self._sleep = path, beat, sleep
        self._stop = threading.Event()
        # The thread knows only the event, so that it ends with this object.
        weakref.finalize(self, self._stop.set)

    def take(self) -> None:
        """Names this process, and touches the file until `release`."""
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        owner = Owner(socket.gethostname(), _boot(), os.getpid(), since)
        # Not synced: what a crash of the machine loses names no living process.
        write_text(self._path, json.dumps(asdict(owner), indent=2), lasting=False)
        self._stop.clear()
        threading.Thread(
            target=_touch, args=(self._path, self._stop, self._beat), daemon=True
        ).start()

    def release(self) -> None:
        """Removes the file, if it names this process."""
        self._stop.set()
        owner = self.read()
        if owner is not None and owner.pid == os.getpid() and owner.is_here():
            with suppress(OSError):  # A file that stays names no living process.
                self._path.unlink(missing_ok=True)

    def read(self) -> Owner | None:
        """Returns the owner that the file names; None if the file is absent or malformed."""
        try:
            return Owner(**json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def elsewhere(self, *, wait: bool) -> Owner | None:
        """Returns the owner if it is on another host and may be alive.

        Args:
          wait: whether to wait until that is certain, if the owner was alive a moment ago.
        """
        owner = self.read()
        if owner is None or owner.is_here():
            return None
        before = self._touched()
        probe = self._path.with_name(f"{self._path.name}.{socket.gethostname()}-{os.getpid()}")
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
        if before is None or now - before > _MISSED * self._beat:
            return None
        if not wait:
            return owner
        logger.warning("Waits to see if %s, the owner of %s, is alive.", owner, self._path.parent)
        for _ in range(_MISSED * _CHECKS):
            self._sleep(self._beat / _CHECKS)
            if self._touched() != before:
                return owner
        return None

    def _touched(self) -> float | None:
        try:
            # Opened, because a network file system answers `stat` from its cache.
            with self._path.open("rb") as file:
                return os.fstat(file.fileno()).st_mtime
        except OSError:
            return None


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _touch(path: Path, stop: threading.Event, beat: float) -> None:
    while not stop.wait(beat):
        try:
            os.utime(path)
        except OSError as error:  # The next beat may succeed.
            logger.debug("%s cannot be touched: %s", path, error)
