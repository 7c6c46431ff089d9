"""The process that follows a run's journal: started, told what to follow, waited for."""

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

logger = logging.getLogger(__name__)

AWAIT = "-"
"""In place of the run directory: the first line of standard input names MLflow's URI, if any, and
each further one a directory. A command line would show passwords to everyone."""

ANSWER = "\x06"
"""Begins a line of standard output that says how the delivery of a run ended: 1 where nothing is
left, and the run directory."""

# Followers that outlive this process; dropping them would warn of that.
_left: list[subprocess.Popen[str]] = []


class FollowerProcess:
    """A `python -m runner.sync` that belongs to this process.

    It is started before the run directory is known, so that it imports MLflow and opens the
    store beside this process. The end of its standard input, by `finish` or by the death of this
    process, tells it to look at once; what it writes to standard output is logged here.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._answers = Answers()
        self._left = False

    def start(self, uri: str | None) -> None:
        """Starts the process; a failure is logged, and costs only the delivery for now.

        Args:
          uri: MLflow's tracking URI, to be opened at once; None when nothing goes there.
        """
        root = str(Path(__file__).resolve().parents[2])
        path = os.environ.get("PYTHONPATH")
        try:
            self._process = subprocess.Popen(
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
            logger.warning("What the run records is not delivered for now: %s", error)
            self._answers.end()
            return
        threading.Thread(
            target=self._relay, args=(self._process, self._answers), daemon=True
        ).start()
        self._tell(uri or "")

    def follow(self, run_directory: Path, parent: Path | None = None) -> None:
        """Names a run directory, and that of the run that it is a part of."""
        self._answers.expect(str(run_directory))
        self._tell(str(run_directory))

    def _tell(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except OSError as error:
            logger.warning("What the run records is not delivered for now: %s", error)

    def finish(self, run_directory: Path, timeout: float, longest: float = math.inf) -> list[Path]:
        """Waits until all of a run is delivered, for at most `timeout` and `longest` seconds.

        Returns the directories of the runs of which something is left.
        """
        return [] if self.end(min(timeout, longest)) else [run_directory]

    def end(self, timeout: float) -> bool:
        """Waits until it has ended, for at most `timeout` seconds; whether it did all its work."""
        if self._process is None:
            return False
        self._close()
        try:
            return self._process.wait(timeout) == 0
        except subprocess.TimeoutExpired:
            _left.append(self._process)
            return False

    def leave(self) -> None:
        """Lets it do its work without being waited for."""
        if self._process is not None and self._process.poll() is None:
            self._close()
            _left.append(self._process)

    def __del__(self) -> None:
        """Tells one that is dropped, as the death of this process would, that no more comes."""
        self.leave()

    def _close(self) -> None:
        self._left = True
        try:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
        except OSError as error:
            logger.debug("The follower has gone: %s", error)

    # Not a method: a follower that is dropped must not be kept by its thread.
    @staticmethod
    def _relay(process: subprocess.Popen[str], answers: Answers) -> None:
        if process.stdout is not None:
            with process.stdout:
                for line in process.stdout:
                    text = line.rstrip("\n")
                    if text.startswith(ANSWER):
                        answers.give(text[2:], delivered=text[1] == "1")
                    else:
                        logger.warning("%s", text)
        answers.end()


class Answers:
    """What a follower has answered, which it does each time that it is told of a run directory."""

    def __init__(self) -> None:
        self._owed: Counter[str] = Counter()
        self._given: dict[str, bool] = {}
        self._ended = False
        self._changed = threading.Condition()

    def expect(self, run_directory: str) -> None:
        """Notes that the follower is told of a run."""
        with self._changed:
            self._owed[run_directory] += 1

    def give(self, run_directory: str, *, delivered: bool) -> None:
        """Notes an answer."""
        with self._changed:
            self._owed[run_directory] -= 1
            self._given[run_directory] = delivered
            self._changed.notify_all()

    def end(self) -> None:
        """Notes that no answer comes any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, run_directory: str, timeout: float) -> bool:
        """Waits for all answers of a run, for at most `timeout` seconds.

        Returns whether nothing is left of it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or not self._owed[run_directory], timeout)
            return not self._owed[run_directory] and self._given.get(run_directory, False)


class SharedFollower(FollowerProcess):
    """A follower of several runs of this process.

    A trial of a sweep so need not start one, which imports MLflow for seconds. Where the sweep's
    own run is followed too, its trials do not wait for what they have recorded: it waits for all.
    """

    def __init__(self) -> None:
        super().__init__()
        # Run -> the run that it is a part of; those that are not known to be delivered.
        self._runs: dict[Path, Path | None] = {}

    @property
    def lives(self) -> bool:
        """Whether it can be told of another run."""
        process = self._process
        return process is not None and process.poll() is None and not self._left

    def start_again(self, uri: str | None) -> None:
        """Starts another process in place of one that has died, and tells it of what that left."""
        self._close()
        answers = self._answers
        self._runs = {
            run: parent for run, parent in self._runs.items() if not answers.wait(str(run), 0.0)
        }
        self._answers, self._left = Answers(), False
        self.start(uri)
        for each in self._runs:
            super().follow(each)

    def follow(self, run_directory: Path, parent: Path | None = None) -> None:
        """Names a run directory, and that of the run that it is a part of."""
        self._runs[run_directory] = parent
        super().follow(run_directory, parent)

    def finish(self, run_directory: Path, timeout: float, longest: float = math.inf) -> list[Path]:
        """Waits until all of a run and its parts is delivered.

        A part of a run that is followed and goes on does not wait.

        Args:
          run_directory: the run's, which has ended.
          timeout: after so many seconds in which none of them was delivered, it waits no more.
          longest: nor after so many seconds in all.

        Returns:
          The directories of the runs of which something is left, as far as they are waited for.
        """
        if self.lives:
            self._tell("")
        if self._runs.get(run_directory) in self._runs:
            return []
        left = []
        end = time.monotonic() + longest
        deadline = time.monotonic() + timeout
        for each in [run for run, parent in self._runs.items() if run_directory in (run, parent)]:
            if self._answers.wait(str(each), min(deadline, end) - time.monotonic()):
                deadline = time.monotonic() + timeout
            else:
                left.append(each)
            del self._runs[each]
        return left

    def leave(self) -> None:
        """Goes on with it; its process ends after this one."""
        if self.lives:
            self._tell("")


_shared: dict[str, SharedFollower] = {}


def shared_follower(uri: str | None) -> SharedFollower:
    """Returns this process's follower of several runs, started where there is none.

    Args:
      uri: MLflow's tracking URI; None when nothing goes there.
    """
    found = _shared.get(uri or "")
    if found is None:
        found = _shared[uri or ""] = SharedFollower()
        found.start(uri)
    elif not found.lives:
        found.start_again(uri)
    return found


def living_follower(uri: str | None) -> FollowerProcess | None:
    """Returns this process's follower of several runs if there is one; None otherwise."""
    found = _shared.get(uri or "")
    return found if found is not None and found.lives else None


@atexit.register
def _leave_shared() -> None:
    for each in _shared.values():
        FollowerProcess.leave(each)
    for process in _left:
        process.poll()  # One that has ended, and was not asked, is warned of as still running.
