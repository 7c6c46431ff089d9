"""The process that delivers what the runs of this one record, and the pipes between the two.

The first line of its standard input is MLflow's URI, or empty: a command line would show passwords
to every user of the machine. Each further line names a run directory, or is empty: then the
process looks at once for what the runs have recorded. On standard output it answers each run
directory when the delivery has ended; other lines are its warnings.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TextIO

from runner.errors import RunnerError, TrackingError
from runner.system.imports import without_collections
from runner.tracking.delivery import sync
from runner.tracking.tracking_directory import TrackingDirectory

logger = logging.getLogger(__name__)

AWAIT = "-"
"""In place of the run directory on the command line: run directories come by standard input."""

ANSWER = "\x06"
"""Begins an answer; then 1 where all is delivered, otherwise 0, and the run directory."""

_NICENESS = 5
_NOT_DELIVERED = "What the run records is not delivered for now: %s"


class FollowerProcess:
    """A `python -m runner.sync` that delivers what the runs of this process record.

    It is started before the run directory is known, so that it imports MLflow and opens the store
    beside this process. It ends when all is delivered and its standard input has ended, with this
    process at the latest.

    Where a sweep's own run is followed too, its trials do not wait until what they have recorded
    is delivered: the sweep waits for all.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        # Run -> its parent, of those that are not known to be delivered.
        self._runs: dict[Path, Path | None] = {}
        self._changed = threading.Condition()
        self._relaying = False
        # Run -> answers to come, and the last one.
        self._owed: Counter[Path] = Counter()
        self._delivered: dict[Path, bool] = {}

    @property
    def is_alive(self) -> bool:
        """Whether it can be given another run."""
        process = self._process
        return (
            process is not None
            and process.poll() is None
            and process.stdin is not None
            and not process.stdin.closed
        )

    def start(self, uri: str | None) -> None:
        """Starts the process unless it is alive; runs that a dead one has left are followed again.

        A failure is logged, and costs only the delivery for now.

        `uri` is MLflow's, to be opened at once; None when nothing goes there.
        """
        if self.is_alive:
            return
        self.close()
        left = {
            run: parent
            for run, parent in self._runs.items()
            if self._owed[run] or not self._delivered.get(run)
        }
        root = str(Path(__file__).resolve().parents[2])
        path = os.environ.get("PYTHONPATH")
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "runner.sync", AWAIT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{path}" if path else root},
                text=True,
                # Ctrl-C in the terminal is for the run, which then ends what it records.
                start_new_session=True,
            )
        except OSError as error:
            logger.warning(_NOT_DELIVERED, error)
            return
        with self._changed:
            self._process, self._relaying = process, True
            self._owed.clear()
        self._runs.clear()
        threading.Thread(target=self._relay, args=(process,), daemon=True).start()
        self._send(uri or "")
        for run, parent in left.items():
            self.follow(run, parent)

    def follow(self, run_directory: Path, parent: Path | None = None) -> None:
        """Names a run directory, and that of its parent run."""
        self._runs[run_directory] = parent
        with self._changed:
            self._owed[run_directory] += 1
        self._send(str(run_directory))

    def finish(self, run_directory: Path, timeout: float, longest: float = math.inf) -> list[Path]:
        """Waits until all of a run and its children is delivered.

        A run whose parent is followed does not wait.

        Args:
          run_directory: the run directory of a run that has ended.
          timeout: it stops waiting after so many seconds in which none of them was delivered.
          longest: and after so many seconds in all.

        Returns:
          The run directories, among those waited for, of which something is left.
        """
        if self.is_alive:
            self._send("")
        if self._runs.get(run_directory) in self._runs:
            return []
        left = []
        end = time.monotonic() + longest
        deadline = time.monotonic() + timeout
        for each in [run for run, parent in self._runs.items() if run_directory in (run, parent)]:
            if self._is_delivered(each, min(deadline, end) - time.monotonic()):
                deadline = time.monotonic() + timeout
            else:
                left.append(each)
            del self._runs[each]
        return left

    def close(self) -> None:
        """Lets the process end once all is delivered."""
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError as error:
                logger.debug("The follower has ended: %s", error)

    def _send(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except OSError as error:
            logger.warning(_NOT_DELIVERED, error)

    def _is_delivered(self, run: Path, timeout: float) -> bool:
        """Waits for all answers of a run."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._relaying and self._owed[run]), timeout)
            return not self._owed[run] and self._delivered.get(run, False)

    def _relay(self, process: subprocess.Popen[str]) -> None:
        """Logs what a process writes, and notes its answers."""
        if process.stdout is not None:
            with process.stdout:
                for line in process.stdout:
                    line = line.rstrip("\n")
                    if not line.startswith(ANSWER):
                        logger.warning("%s", line)
                        continue
                    with self._changed:
                        if process is self._process:
                            run = Path(line[2:])
                            self._owed[run] -= 1
                            self._delivered[run] = line[1] == "1"
                            self._changed.notify_all()
        with self._changed:
            if process is self._process:
                self._relaying = False
                self._changed.notify_all()


_follower = FollowerProcess()


def start_follower(uri: str | None) -> FollowerProcess:
    """Returns the follower of all runs of this process, started if it is not alive."""
    _follower.start(uri)
    return _follower


@atexit.register
def _close() -> None:
    _follower.close()
    # Without this, Python warns that a process that has ended is still running.
    _ = _follower.is_alive


def serve() -> bool:
    """Delivers for the process at the other end of standard input; whether nothing is left."""
    os.nice(_NICENESS)  # Training comes first.
    _open_early(sys.stdin.readline().rstrip("\n"))
    wakes: list[threading.Event] = []
    results: dict[str, bool] = {}
    writing = threading.Lock()

    def deliver(name: str) -> None:
        results[name] = False
        try:
            results[name] = sync(TrackingDirectory(Path(name)), wakes=wakes)
        except RunnerError as error:
            _write_line(sys.stderr, f"runner.sync: {error}", writing)
        finally:
            _write_line(sys.stdout, f"{ANSWER}{int(results[name])}{name}", writing)

    threads = []
    for line in sys.stdin:
        name = line.rstrip("\n")
        if name:
            threads.append(threading.Thread(target=deliver, args=(name,)))
            threads[-1].start()
        else:
            _wake(wakes)
    while any(thread.is_alive() for thread in threads):
        # From now on no message comes when a run has recorded its end.
        _wake(wakes)
        for thread in threads:
            thread.join(1.0)
    return all(results.values())


def _open_early(uri: str) -> None:
    """Opens MLflow while a run gets ready."""
    if not uri:
        return
    with without_collections():
        from runner.tracking.mlflow_store import MlflowStore

    try:
        store = MlflowStore(uri)
        # A run that is refused for a mistake leaves no database behind.
        if store.address.exists:
            store.connect()
    except TrackingError as error:
        # The run's log does not exist yet; the delivery tries again and reports it.
        logger.info("%s", error)


def _wake(wakes: list[threading.Event]) -> None:
    for each in list(wakes):
        each.set()


def _write_line(stream: TextIO, line: str, writing: threading.Lock) -> None:
    """Writes a line that no other thread's runs into, as `print` with its two writes would."""
    try:
        with writing:
            stream.write(f"{line}\n")
            stream.flush()
    except OSError:
        logger.info("The process whose runs are delivered has ended.")
