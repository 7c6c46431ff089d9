"""The process that delivers the records of this process's runs.

Its standard input names their run directories. It answers nothing: the `tracking` folder of a run
says how far it is delivered. Its output is its warnings.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.errors import InterruptedRunError, RunnerError
from runner.system.imports import python_path, without_collections
from runner.system.locks import LongWait
from runner.tracking.delivery import sync
from runner.tracking.tracking_directory import TrackingDirectory, now

logger = logging.getLogger(__name__)

MLFLOW = "runner.tracking.mlflow_store"
"""The module that imports MLflow, named on the command line to be imported at once."""

_NICENESS = 5
# How often a wait for a delivery checks whether a signal has come, and what it leaves for the rest.
_POLL_SECONDS = 0.1
_RESERVED_SECONDS = 1.0
# How long the end of a command after a signal waits for deliveries.
_SIGNALLED_SECONDS = 5.0
# How many runs are delivered at once.
_MAX_RUNS = 1000
_NOT_DELIVERED = "What the run records is not delivered for now: %s"


@dataclass
class _FollowedRun:
    """A run that the process was told to deliver, whose parent run has the directory `parent`.

    It was told so, or the run ended, at `since`, in milliseconds since the epoch.
    """

    parent: Path | None
    since: int


class FollowerProcess:
    """A `python -m runner.tracking` that delivers what the runs of this process record.

    It is started before the run directory is known, so that it imports MLflow beside this process.
    It ends when all is delivered and its standard input has ended, with this process at the latest.

    If the run of a sweep is followed too, its trials do not wait for their delivery: the sweep
    waits for all of them.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._mlflow_uri: str | None = None
        self._runs: dict[Path, _FollowedRun] = {}

    @property
    def is_alive(self) -> bool:
        """Whether another run can be given to the process."""
        process = self._process
        return (
            process is not None
            and process.poll() is None
            and process.stdin is not None
            and not process.stdin.closed
        )

    def start(self, mlflow_uri: str | None) -> None:
        """Starts the process unless it is alive; it follows the runs that a dead one has left.

        A failure is logged, and costs only the delivery for now.

        Where there is an `mlflow_uri`, MLflow is imported at once.
        """
        if self.is_alive:
            return
        self.close()
        self._mlflow_uri = mlflow_uri
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "runner.tracking", *([MLFLOW] if mlflow_uri else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": python_path()},
                text=True,
                # Ctrl-C in the terminal is for the run, which then ends what it records.
                start_new_session=True,
            )
        except OSError as error:
            logger.warning(_NOT_DELIVERED, error)
            return
        self._process = process
        threading.Thread(target=_relay, args=(process,), daemon=True).start()
        for run in self._runs:
            self._send(str(run))

    def follow(self, run_directory: Path, parent: Path | None = None) -> None:
        """Starts the delivery of a run, whose parent run has the run directory `parent`."""
        self._runs[run_directory] = _FollowedRun(parent, now())
        self._send(str(run_directory))

    def finish(
        self,
        run_directory: Path,
        timeout: float,
        *,
        remaining: Callable[[], float | None] = lambda: None,
    ) -> list[Path]:
        """Waits until all of a run and its children is delivered.

        A run whose parent is followed does not wait. A process that has died is started again.

        Args:
          run_directory: the run directory of a run that has ended.
          timeout: how many seconds to wait without the delivery of any of them.
          remaining: returns how many seconds a signal leaves for the end of the run, of which the
            last is for the caller; None without a signal. After a signal it waits a few seconds
            at most, because the process in the background delivers the rest.

        Returns:
          The run directories, among those waited for, that are not delivered completely.
        """
        if self._process is not None and not self.is_alive:
            self.start(self._mlflow_uri)
        ended = self._runs.get(run_directory)
        if ended is not None:
            ended.since = now()
            if ended.parent in self._runs:
                return []
        ends = math.inf
        wait = LongWait("the tracking store, to which the rest of the run's records is delivered")

        def time_is_up() -> bool:
            nonlocal ends
            left, time_now = remaining(), time.monotonic()
            if left is not None:
                ends = min(ends, time_now + min(left - _RESERVED_SECONDS, _SIGNALLED_SECONDS))
            wait.poll()
            return time_now >= min(deadline, ends)

        deadline = time.monotonic() + timeout
        undelivered = []
        for path, run in list(self._runs.items()):
            if run_directory not in (path, run.parent):
                continue
            files = TrackingDirectory(path)
            with suppress(InterruptedRunError):  # A second signal ends the wait.
                while files.is_pending(run.since) and self.is_alive and not time_is_up():
                    time.sleep(_POLL_SECONDS)
            if files.is_delivered():
                deadline = time.monotonic() + timeout
            else:
                undelivered.append(path)
            del self._runs[path]
        return undelivered

    def close(self) -> None:
        """Lets the process end once all is delivered."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # It has ended.
                self._process.stdin.close()
            self._process.poll()  # Python warns of an ended process that nothing has asked.

    def _send(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except OSError as error:
            logger.warning(_NOT_DELIVERED, error)


def _relay(process: subprocess.Popen[str]) -> None:
    """Logs the warnings of a process."""
    assert process.stdout is not None, "it is a pipe"
    with process.stdout:
        for line in process.stdout:
            logger.warning("%s", line.rstrip("\n"))


_follower = FollowerProcess()


def start_follower(mlflow_uri: str | None) -> FollowerProcess:
    """Returns the follower of all runs of this process, started if it is not alive."""
    _follower.start(mlflow_uri)
    return _follower


atexit.register(_follower.close)


def serve(*imported: str) -> bool:
    """Delivers for the process behind standard input; returns whether all is delivered."""
    os.nice(_NICENESS)  # Training comes first.
    with without_collections():
        for module in imported:
            importlib.import_module(module)
    with ThreadPoolExecutor(_MAX_RUNS) as pool:
        deliveries = [pool.submit(_deliver, line.rstrip("\n")) for line in sys.stdin]
    return all(delivery.result() for delivery in deliveries)


def _deliver(name: str) -> bool:
    try:
        return sync(TrackingDirectory(Path(name)))
    except RunnerError as error:
        logger.warning("runner sync: %s", error)
        return False
