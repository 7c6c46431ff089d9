"""A trial of a sweep whose run is in another process: that of the chief of a local cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from runner.errors import PrunedRunError, SweepError
from runner.training.watch import TrialWatch

# In the environment of a chief: the trial, and the descriptor of a pipe to the sweep.
TRIAL = "RUNNER_TRIAL"


class TrialLink:
    """The sweep's end: carries out what the chief of a trial calls."""

    def __init__(self, trial: TrialWatch) -> None:
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
        trial = {"parent": self._trial.parent, "tags": dict(self._trial.tags)}
        return theirs, json.dumps({"descriptor": theirs.fileno(), **trial})

    @property
    def pruned(self) -> bool:
        """Whether the trial is pruned."""
        return self._trial.pruned

    def check(self) -> None:
        """Raises what went wrong when the trial was called, if anything."""
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Waits until everything is carried out that the chiefs, which have ended, have called.

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
                connection.send((self._call(method, arguments), self._trial.pruned))

    def _call(self, method: str, arguments: Sequence[Any]) -> object:
        try:
            return getattr(self._trial, method)(*arguments)
        except (PrunedRunError, SweepError) as error:  # The chief's run ends by these.
            return error
        except Exception as error:  # noqa: BLE001 - `check` raises it in the main thread
            self._failure = error
            return None


class LinkedTrial(TrialWatch):
    """The chief's end: a trial in the sweep's process, over a connection that ends with this."""

    def __init__(self, parent: str, tags: Mapping[str, str], connection: Connection) -> None:
        self.parent, self.tags, self.pruned = parent, tags, False
        self.connection = connection

    def name(self, container: Path) -> str:
        """Returns what identifies the trial below the configured `run_dir`."""
        return str(self._call("name", container.absolute()) or "")

    def started(self, run_dir: Path) -> None:
        """Reports the run's directory."""
        self._call("started", run_dir.absolute())

    def evaluated(self, metrics: Mapping[str, float], step: int) -> None:
        """Reports an evaluation, after which `pruned` may be true."""
        self._call("evaluated", {name: float(value) for name, value in metrics.items()}, step)

    def check(self) -> None:
        """Raises `PrunedRunError` if the trial is pruned."""
        self._call("check")

    def judge(self, objective: float) -> None:
        """Raises `SweepError` if the trial, trained to its end, is a failure."""
        self._call("judge", float(objective))

    def _call(self, method: str, *arguments: Any) -> object:
        try:
            self.connection.send((method, arguments))
            result, self.pruned = self.connection.recv()
        except (EOFError, OSError):
            return None  # Without the sweep's process the lifeline ends this one.
        if isinstance(result, Exception):
            raise result
        return result


def linked_trial(environ: Mapping[str, str]) -> LinkedTrial | None:
    """Returns the trial whose chief this process is; None in any other."""
    value = environ.get(TRIAL)
    if value is None:
        return None
    trial = json.loads(value)
    return LinkedTrial(trial["parent"], trial["tags"], Connection(trial["descriptor"]))
