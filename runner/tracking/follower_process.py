"""The process that follows a run's journal: started, told what to follow, waited for."""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import threading
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
        self._followed = ""
        self._answers = _Answers()
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
            return
        threading.Thread(
            target=self._relay, args=(self._process, self._answers), daemon=True
        ).start()
        self._tell(uri or "")

    def follow(self, run_directory: Path) -> None:
        """Names the run directory."""
        self._followed = str(run_directory)
        self._answers.expect(self._followed)
        self._tell(self._followed)

    def _tell(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except OSError as error:
            logger.warning("What the run records is not delivered for now: %s", error)

    def finish(self, timeout: float) -> bool:
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
    def _relay(process: subprocess.Popen[str], answers: _Answers) -> None:
        if process.stdout is not None:
            with process.stdout:
                for line in process.stdout:
                    text = line.rstrip("\n")
                    if text.startswith(ANSWER):
                        answers.give(text[2:], text[1] == "1")
                    else:
                        logger.warning("%s", text)
        answers.end()


class _Answers:
    """What a follower has answered of each run directory."""

    def __init__(self) -> None:
        self._given: dict[str, bool] = {}
        self._ended = False
        self._changed = threading.Condition()

    def expect(self, run_directory: str) -> None:
        """Forgets an answer of before."""
        with self._changed:
            self._given.pop(run_directory, None)

    def give(self, run_directory: str, delivered: bool) -> None:
        """Notes an answer."""
        with self._changed:
            self._given[run_directory] = delivered
            self._changed.notify_all()

    def end(self) -> None:
        """Notes that no answer comes any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, run_directory: str, timeout: float) -> bool:
        """Waits for an answer, for at most `timeout` seconds; whether all is delivered."""
        with self._changed:
            self._changed.wait_for(lambda: run_directory in self._given or self._ended, timeout)
            return self._given.get(run_directory, False)


class SharedFollower(FollowerProcess):
    """A follower of several runs of this process, one after the other.

    A trial of a sweep so need not start one, which imports MLflow for seconds.
    """

    @property
    def lives(self) -> bool:
        """Whether it can be told of another run."""
        process = self._process
        return process is not None and process.poll() is None and not self._left

    def finish(self, timeout: float) -> bool:
        """Waits until all of the run is delivered, for at most `timeout` seconds; whether it is."""
        if not self.lives:
            return False
        self._tell("")
        return self._answers.wait(self._followed, timeout)

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
    if found is None or not found.lives:
        if found is not None:
            found._close()
        found = _shared[uri or ""] = SharedFollower()
        found.start(uri)
    return found


@atexit.register
def _leave_shared() -> None:
    for each in _shared.values():
        FollowerProcess.leave(each)
    for process in _left:
        process.poll()  # One that has ended, and was not asked, is warned of as still running.
