"""What the chief of a local cluster reports to the process that started it.

It reports that its run has begun, its objective, and for a trial of a sweep every evaluation.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from runner.sweeps.job import Trial

# In the environment of a chief: the trial, and the descriptor of a pipe to the sweep.
TRIAL = "RUNNER_TRIAL"
# File for the objective, which the starting process returns to a sweep.
OBJECTIVE = "RUNNER_OBJECTIVE_FILE"
# Suffix of a file beside that one, which exists once the chief has begun or resumed its run.
_BEGUN = ".begun"


class TrialLink:
    """The sweep's end: the trial learns what its chief reports."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._threads: list[threading.Thread] = []
        self._failure: Exception | None = None

    def connect(self) -> tuple[Connection, str]:
        """Returns the end of a new pipe for a chief, and the value of its `RUNNER_TRIAL`.

        The end is to be inherited by the chief, and closed here.
        """
        ours, theirs = Pipe()
        thread = threading.Thread(target=self._serve, args=(ours,), daemon=True)
        thread.start()
        self._threads.append(thread)
        trial = self._trial
        given = {"parent": trial.parent, "values": trial.values, "number": trial.number}
        return theirs, json.dumps({"descriptor": theirs.fileno(), **given})

    @property
    def pruned(self) -> bool:
        """Whether the trial is pruned."""
        return self._trial.pruned

    def check(self) -> None:
        """Raises what went wrong when the trial learned of a report, if anything."""
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Waits until the trial has learned all that the chiefs, which have ended, have reported.

        Raises:
          PrunedRunError: when the trial is pruned.
        """
        for thread in self._threads:
            thread.join()
        self.check()
        self._trial.check()

    def _serve(self, connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):  # The chief has ended, or was killed.
            while True:
                method, arguments = connection.recv()
                try:
                    getattr(self._trial, method)(*arguments)
                except Exception as error:  # noqa: BLE001 - `check` raises it in the main thread
                    self._failure = error
                connection.send(self._trial.pruned)


class LinkedTrial(Trial):
    """The chief's end: reports to the trial in the sweep's process over `connection`."""

    def __init__(
        self, parent: str, values: Mapping[str, str], number: int, connection: Connection
    ) -> None:
        super().__init__(parent, values, number=number)
        self.connection = connection

    def started(self, run_dir: Path) -> None:
        """Reports the run's directory."""
        self._report("started", run_dir.absolute())

    def evaluated(self, metrics: Mapping[str, float], step: int) -> None:
        """Reports an evaluation, after which `pruned` may be true."""
        if not self.pruned:
            self._step = step
        self._report("evaluated", {name: float(value) for name, value in metrics.items()}, step)

    def _report(self, method: str, *arguments: Any) -> None:
        # Without the sweep's process the lifeline ends this one.
        with suppress(EOFError, OSError):
            self.connection.send((method, arguments))
            self.pruned = self.connection.recv()


def linked_trial(environ: Mapping[str, str]) -> LinkedTrial | None:
    """Returns the trial whose chief this process is; None in any other."""
    value = environ.get(TRIAL)
    if value is None:
        return None
    trial = json.loads(value)
    connection = Connection(trial["descriptor"])
    return LinkedTrial(trial["parent"], trial["values"], trial["number"], connection)


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
