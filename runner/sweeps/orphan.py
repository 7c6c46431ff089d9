"""Ends a process that a sweep started for its trials, once the sweep's own process has gone."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from runner.sweeps.attempt import process_name

_LOOK_SECONDS = 1.0


class Worker:
    """What a process that carries out trials knows of the one that started it.

    joblib's worker waits for its next job at a pipe whose other end it holds too, and so would
    wait for ever after that process was killed.

    Args:
      parent: the number of the process that started it.
    """

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._running = 0
        self._was_idle = False
        self._lock = threading.Lock()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Does not end it meanwhile."""
        with self._lock:
            self._running += 1
            self._was_idle = False
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    def look(self, parent: int, end: Callable[[], object]) -> None:
        """Ends it where its parent has gone, and it was idle since the last look.

        Args:
          parent: the number of its parent now, which is another one when the first has gone.
          end: ends it; no trial begins meanwhile.
        """
        with self._lock:
            if parent != self._parent and self._was_idle:
                end()
            self._was_idle = not self._running

    def watch(self, seconds: float = _LOOK_SECONDS) -> None:
        """Looks again and again, in a thread."""

        def looking() -> None:
            while True:
                time.sleep(seconds)
                self.look(os.getppid(), _end)

        threading.Thread(target=looking, daemon=True).start()


# At most one: this process, from its first trial on.
_workers: list[Worker] = []


def at_work(sweeper: str) -> AbstractContextManager[None]:
    """A trial in this process, which ends after it should the sweeping process have gone.

    Nothing comes of that unless the sweeping process itself has started this one: those of Slurm
    and Ray have other parents, and are ended by them.

    Args:
      sweeper: the name of the process that sweeps.
    """
    parent = os.getppid()
    if not _workers and sweeper == process_name(parent):
        _workers.append(Worker(parent))
        _workers[0].watch()
    return _workers[0].at_work() if _workers else nullcontext()


def _end() -> None:
    for stream in (sys.stdout, sys.stderr):
        # Whoever read it may have gone too.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # The main thread waits in a system call. The follower is a process of its own, which delivers
    # the rest when its standard input ends with this one.
    os._exit(0)
