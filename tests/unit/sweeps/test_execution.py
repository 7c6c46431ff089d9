"""Launchers in this process that lose trials as real ones do, and signals during a launch."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

import pytest

from runner.errors import InterruptedRunError
from runner.sweeps.execution import Execution
from runner.sweeps.sweep_directory import Attempt, SweepDirectory
from runner.system.signals import Interruption
from runner.system.status import Status
from tests.support.sweeping import Died, FakeLauncher, easy


@pytest.fixture(autouse=True)
def _continuing(directory: SweepDirectory) -> None:
    directory.stop_on_failure(False)


def _first(*names: str) -> list[Attempt]:
    return [
        Attempt(number, overrides=(name,), values={"x": name}) for number, name in enumerate(names)
    ]


NO = ValueError("no")
FINISHED, FAILED, KILLED, SKIPPED = Status.FINISHED, Status.FAILED, Status.KILLED, Status.SKIPPED


@dataclass(frozen=True)
class Case:
    """An event in trial b of the trials a, b, c and d, and the outcome of all of them.

    Attributes:
      errors: what ends b each time it is started, the last one repeatedly; None lets it finish.
      statuses: of the trials in the end.
      launches: the trials that are launched together, in turn.
      attempts: at b.
      retries: how often a trial is retried.
      stops: whether a failure stops the sweep.
      crashes_together: whether the death of one process may end other trials.
    """

    errors: Sequence[BaseException | None]
    statuses: Sequence[Status]
    launches: Sequence[str]
    attempts: int = 1
    retries: int = 0
    stops: bool = False
    crashes_together: bool = True


CASES = {
    "a failure leaves the others": Case(
        errors=[NO],
        statuses=[FINISHED, FAILED, FINISHED, FINISHED],
        launches=["abcd"],
    ),
    "a failure stops the sweep on request": Case(
        errors=[NO],
        stops=True,
        statuses=[FINISHED, FAILED, SKIPPED, SKIPPED],
        launches=["abcd"],
    ),
    "what fails is retried after the others": Case(
        errors=[NO],
        retries=1,
        statuses=[FINISHED, FAILED, FINISHED, FINISHED],
        launches=["abcd", "b"],
        attempts=2,
    ),
    "it is retried before it stops the sweep": Case(
        errors=[NO],
        retries=2,
        stops=True,
        statuses=[FINISHED, FAILED, FINISHED, FINISHED],
        launches=["abcd", "b", "b"],
        attempts=3,
    ),
    "what a death takes along is not blamed": Case(
        errors=[Died()],
        statuses=[FINISHED, KILLED, FINISHED, FINISHED],
        launches=["abcd", "d", "b", "c"],
    ),
    # It took c along, which had begun.
    "a death stops the sweep on request": Case(
        errors=[Died()],
        stops=True,
        statuses=[FINISHED, KILLED, KILLED, FINISHED],
        launches=["abcd", "d", "b", "c"],
    ),
    "where all die apart none is launched again": Case(
        errors=[Died()],
        crashes_together=False,
        statuses=[FINISHED, KILLED, KILLED, FINISHED],
        launches=["abcd", "d"],
    ),
    "a killed trial is retried too": Case(
        errors=[Died(), Died(), None],
        retries=2,
        crashes_together=False,
        statuses=[FINISHED, FINISHED, FINISHED, FINISHED],
        launches=["abcd", "bcd", "bcd"],
        attempts=3,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_launches_and_retries(directory: SweepDirectory, name: str) -> None:
    case = CASES[name]
    directory.stop_on_failure(case.stops)
    errors = list(case.errors)

    def work(overrides: Sequence[str]) -> Any:
        error = (errors.pop(0) if len(errors) > 1 else errors[0]) if overrides[0] == "b" else None
        if error is not None:
            raise error
        return easy(overrides)

    launcher = FakeLauncher(directory, work)
    execution = Execution(directory, launcher, case.retries, crashes_together=case.crashes_together)
    attempts = execution.run(_first("a", "b", "c", "d"))
    assert [attempt.status for attempt in attempts] == case.statuses
    assert attempts[1].number == case.attempts
    assert ["".join(trials) for trials in launcher.launched] == case.launches
    ends_the_sweep = case.stops and attempts[1].status is not FINISHED
    assert directory.stopped() == ends_the_sweep


def test_the_cause_of_a_death_is_what_the_launcher_raised(
    directory: SweepDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    def work(overrides: Sequence[str]) -> Any:
        raise Died

    (attempt,) = Execution(directory, FakeLauncher(directory, work), retries=0).run(_first("a"))
    cause = "RuntimeError: a worker was terminated"
    assert attempt.message == f"its process was killed: {cause}"
    assert caplog.messages == [f"The launcher failed, {cause}"]


def test_after_a_signal_trials_elsewhere_are_cancelled_and_waited_for(
    directory: SweepDirectory, capfd: pytest.CaptureFixture[str]
) -> None:
    def launch(overrides: Sequence[Sequence[str]], first: int) -> None:
        file = directory.attempt(first)
        started = threading.Event()

        def train() -> None:
            with file.lock:
                file.update(status=Status.RUNNING, process="elsewhere:1")
                started.set()
                while not file.cancelled():
                    time.sleep(0.01)
                file.update(status=Status.KILLED, message="saved")

        threading.Thread(target=train).start()
        assert started.wait(60)
        signal.raise_signal(signal.SIGINT)

    cancel_queued = MagicMock()
    with Interruption().handled() as interruption:
        execution = Execution(
            directory, launch, 3, interruption=interruption, cancel_queued=cancel_queued
        )
        with pytest.raises(InterruptedRunError, match="ended by SIGINT"):
            execution.run(_first("a", "b"))
    attempts = [file.read() for file in directory.attempts()]
    assert [attempt.status for attempt in attempts] == [KILLED, SKIPPED]
    cancel_queued.assert_called_once_with()
    assert (attempts[0].message, attempts[0].over) == ("saved", True)
    assert capfd.readouterr().err == "runner: waiting for trials to save their last step\n"


def test_a_signal_that_the_launcher_swallows_is_not_lost(directory: SweepDirectory) -> None:
    def launch(overrides: Sequence[Sequence[str]], first: int) -> None:
        with contextlib.suppress(InterruptedRunError):
            signal.raise_signal(signal.SIGTERM)

    handled = Interruption().handled()
    with handled as interruption, pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
        Execution(directory, launch, 3, interruption=interruption).run(_first("a"))
