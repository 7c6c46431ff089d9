"""The process that follows a run's journal: started, told what to follow, waited for."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

logger = logging.getLogger(__name__)

AWAIT = "-"
"""In place of the run directory: a line of standard input names MLflow's URI, if any, a second
one the directory. A command line would show passwords to everyone."""

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
        threading.Thread(target=self._relay, args=(self._process,), daemon=True).start()
        self._tell(uri or "")

    def follow(self, run_directory: Path) -> None:
        """Names the run directory."""
        self._tell(str(run_directory))

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
        try:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
        except OSError as error:
            logger.debug("The follower has gone: %s", error)

    @staticmethod
    def _relay(process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            with process.stdout:
                for line in process.stdout:
                    logger.warning("%s", line.rstrip("\n"))
