"""Ends a task of a local cluster, or a worker of a sweep, when its parent process has gone."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from runner.system.locks import process_name

# The number of the process that starts a task.
LIFELINE = "RUNNER_LIFELINE"
# How long a task has to end in an orderly way once the starting process is gone.
_GRACE_SECONDS = 15.0
_CHECK_SECONDS = 1.0


def when_orphaned(parent: int, end: Callable[[], object], seconds: float = _CHECK_SECONDS) -> None:
    """Calls `end` repeatedly, in a thread, once this process has another parent.

    Args:
      parent: the number of the process that started this one.
      end: ends this process, at the first call or a later one.
      seconds: the time between two checks.
    """

    def watch() -> None:
        while True:
            time.sleep(seconds)
            if os.getppid() != parent:
                end()

    threading.Thread(target=watch, daemon=True).start()


def end_with_launcher(environ: Mapping[str, str]) -> None:
    """Ends this process when the local cluster's process that started it dies, however it dies.

    Does nothing in a process that no local cluster has started.
    """
    launcher = environ.get(LIFELINE)
    if launcher is not None:
        when_orphaned(int(launcher), _end_task)


def _end_task() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    # A step that waits for another task lets no Python code run, handlers of signals included.
    os.kill(os.getpid(), signal.SIGKILL)


class Worker:
    """A process that runs trials, and ends between two of them once its sweep has gone.

    joblib's worker waits for its next job at a pipe whose other end it holds too, and so would wait
    forever after the sweeping process was killed.
    """

    def __init__(self) -> None:
        self._was_idle = False
        self._lock = threading.Lock()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keeps the process from ending inside the block, in which one trial runs."""
        with self._lock:
            self._was_idle = False
            yield

    def end_if_idle(self, end: Callable[[], object]) -> None:
        """Ends the process if it has been idle since the last call; no trial begins meanwhile."""
        if self._lock.acquire(blocking=False):
            if self._was_idle:
                end()
            self._was_idle = True
            self._lock.release()


# At most one: this process, from its first trial on.
_workers: list[Worker] = []


def at_work(sweeper: str) -> AbstractContextManager[None]:
    """Marks a trial in this process, which ends after the trial if the process `sweeper` has gone.

    Only a process that the sweeping process itself has started is watched: processes of Slurm and
    Ray have other parents, which end them.
    """
    parent = os.getppid()
    if not _workers and sweeper == process_name(parent):
        worker = Worker()
        _workers.append(worker)
        when_orphaned(parent, lambda: worker.end_if_idle(_end_worker))
    return _workers[0].at_work() if _workers else nullcontext()


def _end_worker() -> None:
    for stream in (sys.stdout, sys.stderr):
        # Its reader may have gone too.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # The main thread waits in a system call. The follower is a process of its own, which delivers
    # the rest when its standard input ends with this one.
    os._exit(0)
