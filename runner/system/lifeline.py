"""The tie between the tasks of a local cluster and the process that started them."""

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

# Number of a descriptor that is at its end as soon as the starting process is gone.
LIFELINE = "RUNNER_LIFELINE"
# File for the objective, which the starting process returns to a sweep.
OBJECTIVE = "RUNNER_OBJECTIVE_FILE"
# Of a file beside that one, which is there when the chief has begun or resumed its run.
_BEGUN = ".begun"
# How long a task has to end in good order when the starting process is gone.
_GRACE_SECONDS = 15.0


def end_with_launcher(environ: Mapping[str, str]) -> None:
    """Ends this process when the one that started it dies, however it dies.

    What this process prints then goes nowhere, and does not keep it from saving. Does nothing in a
    process that no local cluster has started.
    """
    descriptor = environ.get(LIFELINE)
    if descriptor is not None:
        sys.stdout, sys.stderr = _outliving(sys.stdout), _outliving(sys.stderr)
        threading.Thread(target=_watch, args=(int(descriptor),), daemon=True).start()


def tell_begun(environ: Mapping[str, str]) -> None:
    """Tells the process that started this one, if any, that a run is begun or resumed."""
    file = environ.get(OBJECTIVE)
    if file is not None:
        Path(file).with_suffix(_BEGUN).touch()


def has_begun(environ: Mapping[str, str]) -> bool:
    """Whether a task that was started in this environment has told of its run."""
    return Path(environ[OBJECTIVE]).with_suffix(_BEGUN).exists()


def hand_over(objective: float | None, environ: Mapping[str, str]) -> None:
    """Gives the objective to the process that started this one, if any."""
    file = environ.get(OBJECTIVE)
    if file is not None and objective is not None:
        Path(file).write_text(repr(float(objective)))


class _Outliving(io.FileIO):
    """A pipe that swallows what is written when nobody reads it any more."""

    def write(self, data: Any, /) -> int:
        """Writes to the pipe, or, once that has failed, nowhere."""
        try:
            return super().write(data)
        except BrokenPipeError:
            lead_nowhere(self.fileno())
            return super().write(data)


def lead_nowhere(descriptor: int) -> None:
    """Has what is written to a descriptor, whose reader is gone, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _outliving(stream: TextIO) -> TextIO:
    """Returns a stream that writes to the same file, as long as that is read."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # Somebody collects it within this process.
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Outliving(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    # A step that waits for another task lets no Python code run, that of signals included.
    os.kill(os.getpid(), signal.SIGKILL)


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
