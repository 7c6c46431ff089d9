from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.sweeps.attempt import TrialStatus
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


def test_other_params_are_another_sweep() -> None:
    assert GridSweep().search() == ""
    assert GridSweep({"seed": [1]}).search() != GridSweep({"seed": [2]}).search() != ""
