"""A process that records steps when it is told to, and how it is told.

As a program: `python -m tests.support.recording DIRECTORY URI STEP`. Of the lines on its standard
input, `+ N` records N steps and answers with the seconds that took, and `end` closes the run. Its
first line of output is the number of the process that delivers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from mlflow import MlflowClient

from runner.config.schema import TrackingConfig
from runner.system.status import Status
from runner.tracking import open_store
from runner.tracking.address import address_of
from runner.tracking.follower_process import start_follower
from runner.tracking.tracking_directory import TrackingDirectory
from tests.support.forked import Forks, environment
from tests.support.runs import wait_for


class Recording:
    """A process that records steps from `start` on in MLflow at `uri`."""

    def __init__(self, forks: Forks, directory: Path, uri: str, start: int = 0) -> None:
        self.directory = TrackingDirectory(directory)
        self.uri = address_of(uri, directory).uri
        self.process = forks.start(
            [sys.executable, "-m", "tests.support.recording", str(directory), uri, str(start)],
            # A request to a server that hangs is given up sooner than it is otherwise.
            env={
                **environment(),
                "MLFLOW_HTTP_REQUEST_TIMEOUT": "3",
                "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.follower = int(_piped(self.process.stdout).readline())

    def record(self, steps: int) -> float:
        """Returns how many seconds the steps took."""
        self._write(f"+ {steps}")
        return float(_piped(self.process.stdout).readline())

    def end(self) -> str:
        """Returns what the run has logged."""
        self._write("end")
        _piped(self.process.stdin).close()
        _, errors = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, errors
        return str(errors)

    def kill(self, *, follower: bool = False) -> None:
        """Kills the process, and before it the one that delivers."""
        if follower:
            os.kill(self.follower, signal.SIGKILL)
        self.process.send_signal(signal.SIGKILL)
        with suppress(BrokenPipeError):
            _piped(self.process.stdin).close()
        self.process.communicate()

    def history(self, uri: str | None = None) -> list[tuple[int, float]]:
        """Steps and values as the store has them."""
        run_id = self.directory.position(self.uri).run_id
        if run_id is None:
            return []
        client = MlflowClient(tracking_uri=uri or self.uri)
        return sorted((m.step, m.value) for m in client.get_metric_history(run_id, "loss"))

    def status(self, uri: str | None = None) -> str:
        """Its status in the store."""
        run_id = self.directory.position(self.uri).run_id
        return str(MlflowClient(tracking_uri=uri or self.uri).get_run(str(run_id)).info.status)

    def delivered(self, steps: int, uri: str | None = None) -> None:
        """Waits until the store has so many steps."""
        wait_for(lambda: len(self.history(uri)) == steps, 120.0)

    def interruptions(self) -> int:
        """How often delivery has failed."""
        return self.directory.log.read_text().count("interrupted")

    def _write(self, line: str) -> None:
        stdin = _piped(self.process.stdin)
        stdin.write(f"{line}\n")
        stdin.flush()


def _piped(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def main(directory: str, uri: str, start: str) -> None:
    """Records as it is told to."""
    config = TrackingConfig(uri=uri, close_seconds=60.0, patience_seconds=3.0)
    process = start_follower(uri)._process
    assert process is not None
    print(process.pid, flush=True)
    tracker = open_store(config, {}).open(Path(directory), "faults", "one", tags={"host": "here"})
    tracker.log_parameters({"rate": 0.1})
    step = int(start)
    tracker.rewind(step)
    for line in sys.stdin:
        if line.startswith("+"):
            began = time.perf_counter()
            for _ in range(int(line[1:])):
                step += 1
                tracker.log_metrics({"loss": step / 3}, step)
            print(time.perf_counter() - began, flush=True)
        elif line.startswith("end"):
            tracker.close(Status.FINISHED)


if __name__ == "__main__":
    main(*sys.argv[1:])
