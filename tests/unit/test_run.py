"""What becomes of a run: begun, resumed, or refused before anything is made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.config.choices import Mode, Resume, StateChoice
from runner.config.schema import ScaffoldConfig, TrainConfig, VariablesConfig
from runner.errors import CheckpointError, ConfigError, PlanError, RunDirectoryError
from runner.run import run_experiment
from runner.runs.run_directory import RunDirectory, open_run
from runner.training.run import Surroundings
from tests.tiny.runs import Runs, disturbed, evaluations, warm


def test_a_run_that_failed_is_continued_as_if_it_had_not(runs: Runs, tmp_path: Path) -> None:
    hooks = disturbed("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    assert (runs.record().status, runs.steps()) == ("FAILED", [10])
    objective, lines = runs.run(hooks=hooks)
    assert lines[0] == f"tiny: resumes in {runs.directory().path}"
    assert "pretrained sources not read" in lines[1]
    assert (runs.record().status, runs.steps(), runs.count()) == ("FINISHED", [10, 20], 1)

    whole = Runs(tmp_path / "whole")
    assert whole.run(hooks=hooks)[0] == objective
    for name, value in whole.values().items():
        assert np.array_equal(value, runs.values()[name]), name


def test_a_run_killed_before_its_first_checkpoint_begins_again(runs: Runs, tmp_path: Path) -> None:
    hooks = disturbed("FailOnce", step=3, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    objective, lines = runs.run(hooks=hooks)
    assert lines[0] == f"tiny: resumes in {runs.directory().path}"
    assert "from initializers" in lines[1]
    assert objective == Runs(tmp_path / "whole").run(hooks=hooks)[0]


def test_a_run_killed_before_its_first_checkpoint_was_listed_resumes_from_it(
    runs: Runs, tmp_path: Path
) -> None:
    hooks = disturbed("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    (runs.directory().checkpoints / "checkpoint").unlink()
    _, lines = runs.run(hooks=hooks)
    assert "pretrained sources not read" in lines[1]
    assert runs.steps() == [10, 20]


def test_a_checkpoint_whose_files_are_lost_is_not_replaced_by_random_weights(
    runs: Runs, tmp_path: Path
) -> None:
    hooks = disturbed("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    for file in runs.directory().checkpoints.glob("model.ckpt-10.*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="no such checkpoint is there"):
        runs.run(hooks=hooks)


def test_a_run_killed_at_its_last_step_only_evaluates_and_ends(runs: Runs) -> None:
    objective, _ = runs.run()
    files = sorted(runs.directory().checkpoints.iterdir())
    times = [file.stat().st_mtime_ns for file in files]
    runs.directory().update(status="RUNNING", objective=None)
    again, lines = runs.run()
    assert again == objective
    assert evaluations(lines) == [20]
    assert not any("steps/s" in line for line in lines)
    assert runs.record().status == "FINISHED"
    assert sorted(runs.directory().checkpoints.iterdir()) == files
    assert [file.stat().st_mtime_ns for file in files] == times


def test_a_finished_run_is_not_touched(runs: Runs) -> None:
    runs.run()
    before = {
        path: path.read_bytes() for path in runs.directory().path.rglob("*") if path.is_file()
    }
    _, lines = runs.run()
    assert lines[0] == f"tiny: runs in {runs.directory(2).path}"
    assert {path: path.read_bytes() for path in before} == before


def test_resume_never_leaves_the_interrupted_run_alone(runs: Runs, tmp_path: Path) -> None:
    hooks = disturbed("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    runs.run(hooks=hooks, resume=Resume.never)
    assert [runs.record(1).status, runs.record(2).status] == ["FAILED", "FINISHED"]
    assert runs.steps(number=1) == [10]


def test_resume_must_starts_nothing(runs: Runs) -> None:
    with pytest.raises(RunDirectoryError, match="holds no interrupted run"):
        runs.run(resume=Resume.must)
    assert runs.count() == 0


def test_a_hook_with_a_wrong_argument_is_refused(runs: Runs) -> None:
    with pytest.raises(ConfigError, match=r"hooks\.disturb\.stap"):
        runs.run(hooks=disturbed("StopEarly", step=7, stap=8))
    assert not runs.folder.exists()


def test_a_hook_that_is_none_is_refused(runs: Runs) -> None:
    with pytest.raises(ConfigError, match=r"builtins\.dict is not a tf\.compat\.v1\.train\.Sess"):
        runs.run(hooks={"mine": {"_target_": "builtins.dict"}})
    assert not runs.folder.exists()


def test_what_is_unfinished_is_told_by_the_plan_and_by_another_run(
    runs: Runs, tmp_path: Path
) -> None:
    hooks = disturbed("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    run_experiment(runs.config(hooks=hooks, mode=Mode.plan), Surroundings(screen=runs.screen()))
    assert runs.lines()[0].startswith(f"mode=train would resume {runs.directory().path}")
    _, lines = runs.run(hooks=hooks, seed=3)
    assert lines[0] == f"tiny: runs in {runs.directory(2).path}"
    assert lines[1] == f"  {runs.directory().path} is unfinished and left alone: seed: 0 -> 3"


def test_a_warm_start_brings_the_sources_values(runs: Runs, tmp_path: Path) -> None:
    source = Runs(tmp_path / "source")
    source.run()
    _, lines = runs.run(scaffolds=warm(str(source.directory().checkpoints)), seed=5)
    assert "  body: 6 variables (52 values) from" in lines[1]
    assert "; 19 tensors unused; sha256:" in lines[1]
    kernel = source.values()["body/dense/kernel"]
    assert np.array_equal(runs.values()["body/dense/kernel"], kernel)
    assert not np.array_equal(runs.values()["head/kernel"], source.values()["head/kernel"])


def test_the_state_of_a_scheduled_optimizer_goes_with_its_variables(
    runs: Runs, tmp_path: Path
) -> None:
    slow = ScaffoldConfig(VariablesConfig(["body/*"]), None, learning_rate_multiplier=0.5)
    source = Runs(tmp_path / "source")
    source.run(scaffolds={"body": slow})
    checkpoint, state = str(source.directory().checkpoints), list(StateChoice)[:2]
    state += [StateChoice.optimizer_slots]
    again = replace(slow, checkpoint=checkpoint, state=state)
    whole = ScaffoldConfig(VariablesConfig(["body/*", "head/*"]), checkpoint, state=state)
    for number, (scaffold, name) in enumerate(
        [(again, "rate_x0.5/beta1_power"), (whole, "beta1_power")], 1
    ):
        runs.run(scaffolds={"part": scaffold}, train=TrainConfig(steps=1, evaluate_every=1))
        values = tf.train.load_checkpoint(str(runs.directory(number).checkpoints))
        kept = 0.9 ** np.arange(1, 30)
        assert values.get_tensor(name) == pytest.approx(kept[21], rel=1e-5), "20 steps and one"
        plan = json.loads(runs.directory(number).plan_json.read_text())
        (power,) = (each for each in plan["variables"] if each["name"] == name)
        assert power["origin"] == "checkpoint"


def test_a_plan_with_problems_leaves_nothing_behind(runs: Runs, tmp_path: Path) -> None:
    source = Runs(tmp_path / "source")
    source.run()
    scaffolds = warm(str(source.directory().checkpoints))
    scaffolds["body"].rename = {"body/": "trunk/"}
    with pytest.raises(PlanError, match="none named trunk/dense/kernel"):
        runs.run(scaffolds=scaffolds)
    assert not runs.folder.exists()


def test_a_missing_source_leaves_nothing_behind(runs: Runs, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"scaffolds\.body\.checkpoint: there is no checkpoint"):
        runs.run(scaffolds=warm(str(tmp_path / "nowhere")))
    assert not runs.folder.exists()


def test_a_run_that_another_process_finished_meanwhile_is_not_taken_for_resumed(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new run that starts in its place is warm-started like any other."""
    source = Runs(tmp_path / "source")
    source.run()
    scaffolds = warm(str(source.directory().checkpoints))
    hooks = disturbed("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(scaffolds=scaffolds, hooks=hooks)

    def finish_first(*arguments: Any, **options: Any) -> RunDirectory:
        runs.directory().update(status="FINISHED")
        return open_run(*arguments, **options)

    monkeypatch.setattr("runner.training.run.open_run", finish_first)
    _, lines = runs.run(scaffolds=scaffolds, hooks=hooks)
    assert lines[0] == f"tiny: runs in {runs.directory(2).path}"
    assert "  body: 6 variables" in lines[1]
    kernel = source.values()["body/dense/kernel"]
    assert np.array_equal(runs.values(2)["body/dense/kernel"], kernel)


def test_a_run_that_another_process_left_meanwhile_is_resumed(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = disturbed("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    monkeypatch.setattr("runner.training.run.interrupted_run", lambda *arguments, **options: None)
    _, lines = runs.run(hooks=hooks)
    assert lines[0] == f"tiny: resumes in {runs.directory().path}"
    assert "pretrained sources not read" in lines[1]
    assert runs.count() == 1
