"""One attempt at a trial of a sweep, as a file that its process and the sweep's both read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from runner.system.atomic_files import moved, way_to, write_json
from runner.system.locks import is_held, this_process
from runner.system.status import Status

TrialStatus = Status
FAILURES = (TrialStatus.FAILED, TrialStatus.KILLED)
DIED = "its process was killed"
"""Begins the message of a trial whose process could not say anything itself."""


@dataclass(frozen=True)
class Attempt:
    """What is known of one attempt at a trial.

    Attributes:
      trial: number of the trial in its sweep, from 0.
      number: which attempt at the trial this is, from 1.
      overrides: the trial's overrides, all of them.
      values: swept key -> value.
      fingerprint: of the trial's configuration; empty where it is not known beforehand.
      metric: the name of `train.objective`.
      last: whether a failure is final.
      sweeper: the process that sweeps.
      process: the one that carries it out; empty before it has begun.
      status: how far it came.
      objective: `train.objective`; None without an evaluation.
      metrics: those of the evaluation with the best objective.
      curve: step and value of `train.objective` for each evaluation of the run.
      message: why it failed.
      exit_code: the exit code that its error alone would have had.
      run_dir: the run's directory; None before there is one.
      over: of a killed one, whether its sweep has seen that, so that it is not started again.
      infeasible: whether its search knows that it violates a constraint.
      study: where intermediate values are reported; None where nobody asks for them.
    """

    trial: int
    number: int
    overrides: tuple[str, ...]
    values: Mapping[str, str]
    fingerprint: str = ""
    metric: str = ""
    last: bool = True
    sweeper: str = ""
    process: str = ""
    status: TrialStatus = TrialStatus.WAITING
    objective: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[tuple[int, float], ...] = ()
    message: str = ""
    exit_code: int = 1
    run_dir: str | None = None
    over: bool = False
    infeasible: bool = False
    study: Mapping[str, Any] | None = None


class AttemptFile:
    """The file of one attempt, and the lock that its process holds while it lives."""

    def __init__(self, path: Path) -> None:
        """Stores the path, such as `trials/0003.json`."""
        self.path = path
        self.lock = FileLock(path.with_suffix(".lock"))
        self._order = path.with_suffix(".order")

    def read(self) -> Attempt:
        """Returns what is known."""
        content: dict[str, Any] = json.loads(self.path.read_text())
        way = content.get("way_to_run")
        known = {each.name for each in fields(Attempt)}
        content = {key: value for key, value in content.items() if key in known}
        content["run_dir"] = moved(content.get("run_dir"), way, self.path.parent)
        content["overrides"] = tuple(content["overrides"])
        content["values"] = dict(content["values"])
        content["curve"] = tuple((step, value) for step, value in content["curve"])
        content["status"] = TrialStatus(content["status"])
        return Attempt(**content)

    def write(self, attempt: Attempt) -> None:
        """Replaces the file in one step."""
        # As pairs: the keys of a mapping would be sorted.
        values = list(attempt.values.items())
        way = way_to(attempt.run_dir, self.path.parent)
        write_json(self.path, asdict(attempt) | {"values": values, "way_to_run": way})

    def update(self, **changes: Any) -> Attempt:
        """Changes some attributes and returns them all."""
        attempt = replace(self.read(), **changes)
        self.write(attempt)
        return attempt

    def call_off(self) -> None:
        """Has its process end it, or never start it."""
        self._order.write_text("end")

    def await_orders(self) -> None:
        """Makes sure that `called_off` soon sees what another host says."""
        self._order.touch()

    def called_off(self) -> bool:
        """Whether its process, on whatever host, is to end it."""
        try:
            # Opened, because a network file system answers `stat` from its memory.
            return self._order.read_text() != ""
        except FileNotFoundError:
            return False

    def is_run_elsewhere(self) -> bool:
        """Whether a living process, other than this one, is at it."""
        # Not the lock first: this makes its file.
        lock = Path(self.lock.lock_file)
        return lock.exists() and self.read().process != this_process() and is_held(lock)

    def settle(self, cause: str = "") -> Attempt:
        """Waits for the attempt's process, if one lives, and says what became of it.

        One that says RUNNING though no process is at it was killed, and one that still waits is
        not started. From now on no launcher starts the attempt again.

        Args:
          cause: added to the message of one that was killed.
        """
        with self.lock:
            attempt = self.read()
            if attempt.status is TrialStatus.RUNNING:
                message = f"{DIED}: {cause}" if cause else DIED
                return self.update(status=TrialStatus.KILLED, message=message, over=True)
            if attempt.status is TrialStatus.WAITING:
                return self.update(status=TrialStatus.SKIPPED, message="it was not started")
            if attempt.status is TrialStatus.KILLED:
                return self.update(over=True)
            return attempt


_ENDED = (TrialStatus.FINISHED, TrialStatus.PRUNED, TrialStatus.FAILED, TrialStatus.SKIPPED)


def end_of(file: AttemptFile, say: Callable[[str], object]) -> Attempt:
    """Returns what became of an attempt, which is not started any more where it waits.

    A process that is still at it is waited for.

    Args:
      file: the attempt's.
      say: is told what is waited for.
    """
    attempt = file.read()
    if attempt.status in _ENDED:
        return attempt
    if is_held(Path(file.lock.lock_file)):
        say(f"trial {attempt.trial} is still under way since before; waiting for that")
    return file.settle()
