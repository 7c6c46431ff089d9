"""Passes reports of a local cluster's chief to the process that started it.

They are that its run has begun, its objective and, for a trial of a sweep, every evaluation.
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

# Variable in the environment of a chief: the trial, and the descriptor of a pipe to the sweep.
TRIAL = "RUNNER_TRIAL"
# File for the objective, which the starting process returns to a sweep.
OBJECTIVE = "RUNNER_OBJECTIVE_FILE"
# Suffix of a file beside that one, which exists once the chief has begun or resumed its run.
_BEGUN = ".begun"


class TrialLink:
    """The sweep's end of the link: passes the reports of a chief to the trial."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._threads: list[threading.Thread] = []
        self._failure: Exception | None = None

    def connect(self) -> tuple[Connection, str]:
        """Returns the chief's end of a new pipe, and the value of its `RUNNER_TRIAL`.

        The caller lets the chief inherit that end, and closes it in this process.
        """
        ours, theirs = Pipe()
        thread = threading.Thread(target=self._serve, args=(ours,), daemon=True)
        thread.start()
        self._threads.append(thread)
        trial = self._trial
        content = {"parent": trial.parent, "values": trial.values, "number": trial.number}
        return theirs, json.dumps({"descriptor": theirs.fileno(), **content})

    @property
    def pruned(self) -> bool:
        """Returns whether the trial is pruned."""
        return self._trial.pruned

    def check(self) -> None:
        """Raises the error of a report that the trial could not process, if any."""
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Waits until the trial has processed all reports of the chiefs, which have ended.

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
    """The chief's end of the link: reports to the sweep's process over `connection`."""

    def __init__(
        self, parent: str, values: Mapping[str, str], *, number: int, connection: Connection
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
        # If the sweep's process has died, the lifeline ends this one.
        with suppress(EOFError, OSError):
            self.connection.send((method, arguments))
            self.pruned = self.connection.recv()


def linked_trial(environ: Mapping[str, str]) -> LinkedTrial | None:
    """Returns the trial of this process, if it is the chief of one; otherwise None."""
    value = environ.get(TRIAL)
    if value is None:
        return None
    trial = json.loads(value)
    connection = Connection(trial.pop("descriptor"))
    return LinkedTrial(**trial, connection=connection)


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
