"""Ends a task of a local cluster, or a worker of a sweep, when its parent process has gone.

Also what a task of a local cluster reports to the process that started it.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

from runner.system.locks import process_name

# The number of the process that starts a task.
LIFELINE = "RUNNER_LIFELINE"
# File for the objective, which the starting process returns to a sweep.
OBJECTIVE = "RUNNER_OBJECTIVE_FILE"
# Suffix of a file beside that one, which exists once the chief has begun or resumed its run.
_BEGUN = ".begun"
# How long a task has to end in an orderly way once the starting process is gone.
_GRACE_SECONDS = 15.0
_LOOK_SECONDS = 1.0


def when_orphaned(parent: int, end: Callable[[], object], seconds: float = _LOOK_SECONDS) -> None:
    """Calls `end` again and again, in a thread, once this process has another parent.

    Args:
      parent: the number of the process that started this one.
      end: ends this process, at the first call or a later one.
      seconds: between two looks.
    """

    def looking() -> None:
        while True:
            time.sleep(seconds)
            if os.getppid() != parent:
                end()

    threading.Thread(target=looking, daemon=True).start()


def end_with_launcher(environ: Mapping[str, str]) -> None:
    """Ends this process when the one that started it dies, however it dies.

    Its output is discarded then, and does not keep it from saving. Does nothing in a process that
    no local cluster has started.
    """
    launcher = environ.get(LIFELINE)
    if launcher is not None:
        sys.stdout, sys.stderr = _outliving(sys.stdout), _outliving(sys.stderr)
        when_orphaned(int(launcher), _end_task)


def _end_task() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    # A step that waits for another task lets no Python code run, that of signals included.
    os.kill(os.getpid(), signal.SIGKILL)


def report_begun(environ: Mapping[str, str]) -> None:
    """Reports to the process that started this one, if any, that a run is begun or resumed."""
    file = environ.get(OBJECTIVE)
    if file is not None:
        Path(file).with_suffix(_BEGUN).touch()


def has_begun(environ: Mapping[str, str]) -> bool:
    """Whether a task that was started in this environment has reported its run."""
    return Path(environ[OBJECTIVE]).with_suffix(_BEGUN).exists()


def hand_over(objective: float | None, environ: Mapping[str, str]) -> None:
    """Passes the objective to the process that started this one, if any."""
    file = environ.get(OBJECTIVE)
    if file is not None and objective is not None:
        Path(file).write_text(repr(float(objective)))


class _Outliving(io.FileIO):
    """A pipe that discards what is written once it has no reader."""

    def write(self, data: Any, /) -> int:
        """Writes to the pipe; once that has failed, discards the data."""
        try:
            return super().write(data)
        except BrokenPipeError:
            lead_nowhere(self.fileno())
            return super().write(data)


def lead_nowhere(descriptor: int) -> None:
    """Discards from now on what is written to a descriptor, whose reader is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _outliving(stream: TextIO) -> TextIO:
    """Returns a stream that writes to the same file as long as it has a reader."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # It is captured within this process.
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Outliving(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class Worker:
    """A process that carries out trials, which ends between two of them.

    joblib's worker waits for its next job at a pipe whose other end it holds too, and so would wait
    for ever after the sweeping process was killed.
    """

    def __init__(self) -> None:
        self._was_idle = False
        self._lock = threading.Lock()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keeps the process from ending inside the block; one trial runs at a time."""
        with self._lock:
            self._was_idle = False
            yield

    def end_if_idle(self, end: Callable[[], object]) -> None:
        """Ends the process if it was idle at the last call and since; no trial begins meanwhile."""
        if self._lock.acquire(blocking=False):
            if self._was_idle:
                end()
            self._was_idle = True
            self._lock.release()


# At most one: this process, from its first trial on.
_workers: list[Worker] = []


def at_work(sweeper: str) -> AbstractContextManager[None]:
    """Marks a trial in this process, which ends after it if the process `sweeper` has gone.

    Only a process that the sweeping process itself has started is watched: those of Slurm and Ray
    have other parents, and are ended by them.
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
