from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from runner.console import Screen
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.execution import Execution
from runner.sweeps.grid_sweep import GridSweep
from runner.sweeps.job import Job, carry_out
from runner.sweeps.points import ComposedPoint, Point
from runner.sweeps.sweep_directory import SweepDirectory
from tests.tiny.configs import tiny


def _composed(*fingerprints: str) -> list[ComposedPoint]:
    return [
        ComposedPoint(Point((f"seed={n}",), {"seed": str(n)}), tiny(seed=n), each)
        for n, each in enumerate(fingerprints)
    ]


def test_what_has_finished_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = SweepDirectory(tmp_path)
    launched: list[list[str]] = []

    def launch(overrides: Sequence[Sequence[str]], first: int) -> None:
        launched.append([" ".join(each) for each in overrides])
        for number in range(first, first + len(overrides)):
            carry_out(Job(directory, directory.attempt(number)), lambda trial: 0.5)

    execution = Execution(directory, launch, retries=0)
    sweep = GridSweep()
    assert len(sweep.trials(_composed("a", "b", "c"), execution, directory)) == 3
    directory.attempt(1).update(status=TrialStatus.KILLED)
    # The configuration of the last one has changed since, in its experiment's file.
    trials = sweep.trials(_composed("a", "b", "d"), execution, directory)
    assert launched == [["seed=0", "seed=1", "seed=2"], ["seed=1", "seed=2"]]
    assert [(each.trial, each.status.value) for each in trials] == [
        (0, "FINISHED"),
        (1, "FINISHED"),
        (2, "FINISHED"),
    ]
    assert "1 of 3 trials have finished before" in capsys.readouterr().out


def _point(**values: str) -> ComposedPoint:
    return ComposedPoint(Point((), values), tiny(), "-".join(sorted(values.values())))


def test_the_same_grid_in_another_order_trains_nothing_again(tmp_path: Path) -> None:
    directory = SweepDirectory(tmp_path)
    launched: list[int] = []

    def launch(overrides: Sequence[Sequence[str]], first: int) -> None:
        for number in range(first, first + len(overrides)):
            launched.append(directory.attempt(number).read().trial)
            carry_out(Job(directory, directory.attempt(number)), lambda trial: 0.5)

    execution, sweep = Execution(directory, launch, retries=0), GridSweep()
    points = [_point(a=a, b=b) for a in "12" for b in "34"]
    sweep.trials([*points, points[0]], execution, directory)
    directory.attempt(1).update(status=TrialStatus.KILLED)
    others = [_point(b=b, a=a) for b in "34" for a in "12"]
    trials = sweep.trials([*others, _point(b="9", a="9"), others[0]], execution, directory)
    # The one that was killed keeps its number, and with that its run.
    assert launched == [0, 1, 2, 3, 4, 1, 5]
    assert [each.trial for each in trials] == [0, 2, 1, 3, 5, 4]


class _Died(BaseException):
    """The end of the process that sweeps."""


def test_a_trial_that_ended_the_sweeping_process_comes_last_the_next_time(tmp_path: Path) -> None:
    directory = SweepDirectory(tmp_path)
    launched: list[int] = []
    deadly = {0, 2}

    def launch(overrides: Sequence[Sequence[str]], first: int) -> None:
        for number in range(first, first + len(overrides)):
            file = directory.attempt(number)
            trial = file.read().trial
            launched.append(trial)
            if trial in deadly:
                file.update(status=TrialStatus.RUNNING)
                raise _Died
            carry_out(Job(directory, file), lambda trial: 0.5)

    sweep, composed = GridSweep(), _composed("a", "b", "c", "d")
    execution = Execution(directory, launch, retries=0)
    for _ in range(4):
        with pytest.raises(_Died):
            sweep.trials(composed, execution, directory)
    # Those that can end have done so, and the others take turns.
    assert launched == [0, 1, 2, 3, 0, 2]
    deadly.clear()
    trials = sweep.trials(composed, execution, directory)
    assert [each.trial for each in trials] == [0, 1, 2, 3]


class _Answering(io.StringIO):
    """A screen that does something when it is written to."""

    def __init__(self, answer: Callable[[], object]) -> None:
        super().__init__()
        self.answer = answer

    def write(self, text: str) -> int:
        self.answer()
        return super().write(text)


def test_a_process_that_outlived_its_sweep_is_waited_for(tmp_path: Path) -> None:
    directory = SweepDirectory(tmp_path)
    directory.add([Attempt(0, 1, (), {"seed": "0"}, "a", status=TrialStatus.RUNNING)])
    file = directory.attempt(0)
    file.lock.acquire()

    def end() -> None:
        file.update(status=TrialStatus.FINISHED)
        file.lock.release(force=True)

    sweep = GridSweep()
    said = _Answering(end)
    sweep.screen = Screen(Console(file=said))
    execution = Execution(directory, lambda overrides, first: pytest.fail("launched"), retries=0)
    (trial,) = sweep.trials(_composed("a"), execution, directory)
    assert trial.status is TrialStatus.FINISHED
    assert said.getvalue().startswith("trial 0 is still under way since before; waiting for that")


def test_other_params_are_another_sweep() -> None:
    assert GridSweep().identity() == ""
    assert GridSweep({"seed": [1]}).identity() != GridSweep({"seed": [2]}).identity() != ""
