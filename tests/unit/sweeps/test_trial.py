from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from runner.errors import PrunedRunError, SweepError
from runner.runs.run_directory import RunDirectory
from runner.sweeps.job import Trial


def test_swept_values_are_tags() -> None:
    trial = Trial("sweep", {"seed": "1", "scaffold@scaffolds.cnn": "random"})
    assert trial.tags == {
        "runner.sweep.seed": "1",
        "runner.sweep.scaffold@scaffolds.cnn": "random",
    }


def test_it_learns_its_directory(tmp_path: Path) -> None:
    trial = Trial("sweep", {})
    trial.started(tmp_path)
    assert trial.run_dir == tmp_path


def test_evaluations_are_reported_until_one_prunes() -> None:
    reported: list[int] = []

    def report(metrics: Mapping[str, float], step: int) -> bool:
        reported.append(step)
        return metrics["loss"] > 1

    trial = Trial("sweep", {}, report)
    trial.evaluated({"loss": 0.5}, 10)
    trial.check()
    assert not trial.pruned
    trial.evaluated({"loss": 2.0}, 20)
    trial.evaluated({"loss": 2.0}, 30)
    assert reported == [10, 20]
    assert trial.curve == {10: {"loss": 0.5}, 20: {"loss": 2.0}, 30: {"loss": 2.0}}
    with pytest.raises(PrunedRunError, match=r"^pruned at step 20$"):
        trial.check()


def test_an_objective_that_is_nan_is_no_result() -> None:
    trial = Trial("sweep", {})
    trial.judge(0.5)
    with pytest.raises(SweepError, match=r"^the objective is nan$"):
        trial.judge(float("nan"))


def test_without_a_listener_nothing_is_pruned() -> None:
    trial = Trial("sweep", {})
    trial.evaluated({"loss": 2.0}, 10)
    trial.check()


def test_its_name_is_that_of_no_other_trial_and_stays_when_all_is_moved(tmp_path: Path) -> None:
    trial = Trial(str(tmp_path / "runs" / "sweeps" / "001"), {}, number=3)
    assert trial.name(tmp_path / "runs" / "tiny") == "../sweeps/001:3"


def test_a_resumed_run_remembers_its_evaluations(tmp_path: Path) -> None:
    killed = Trial("sweep", {})
    killed.started(tmp_path)
    killed.evaluated({"loss": 0.5}, 10)
    killed.evaluated({"loss": 0.25}, 20)
    file = RunDirectory(tmp_path).evaluations
    with file.open("a") as stream:
        stream.write("\n[30, {")
    resumed = Trial("sweep", {})
    resumed.started(tmp_path)
    resumed.evaluated({"loss": 0.75}, 20)
    last = Trial("sweep", {})
    last.started(tmp_path)
    assert resumed.curve == last.curve == {10: {"loss": 0.5}, 20: {"loss": 0.75}}


def test_a_curve_that_cannot_be_written_ends_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = Trial("sweep", {})
    trial.started(tmp_path / "nowhere")
    trial.evaluated({"loss": 0.5}, 10)
    assert trial.curve == {10: {"loss": 0.5}}
    assert "lacks step 10" in caplog.text
