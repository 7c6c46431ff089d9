"""The tie between the tasks of a local cluster and the process that started them."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

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
