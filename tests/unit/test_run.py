"""What becomes of a run: begun, resumed, or refused before anything is made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.config.choices import Expect, Mode, PlanFormat, StateChoice
from runner.config.schema import (
    PlanConfig,
    RestorationConfig,
    ScaffoldConfig,
    TrainConfig,
    VariablesConfig,
)
from runner.errors import CheckpointError, ConfigError, PlanError, RunDirectoryError, UserCodeError
from runner.runs.resumption import open_run
from runner.runs.run_directory import RunDirectory
from tests.tiny.configs import PLAIN
from tests.tiny.runs import Runs, disturbed, evaluations, warm


def assert_same_result(one: Runs, other: Runs, number: int = 1) -> None:
    """Compares the objective and all values, bit for bit."""
    assert one.record().status == other.record(number).status == "FINISHED"
    assert one.record().objective == other.record(number).objective
    values, others = one.values(), other.values(number)
    assert values.keys() == others.keys()
    for name, value in values.items():
        assert np.array_equal(value, others[name]), name


def test_a_run_that_failed_is_continued_as_if_it_had_not(failed: Runs, whole: Runs) -> None:
    assert (failed.record().status, failed.steps()) == ("FAILED", [10])
    # Killed at once after its first save, it may be that the list of checkpoints lacks it.
    (failed.directory().checkpoints / "checkpoint").unlink()
    _, lines = failed.run()
    assert lines[0] == f"tiny: resumes in {failed.directory().path}"
    assert "pretrained sources not read" in lines[1]
    assert (failed.steps(), failed.count()) == ([10, 20], 1)
    assert_same_result(whole, failed)


def test_a_run_killed_before_its_first_checkpoint_begins_again(cheap: Runs, tmp_path: Path) -> None:
    cheap.changes["hooks"] = disturbed("FailOnce", step=3, marker=str(tmp_path / "marker"))
    with pytest.raises(UserCodeError, match="the hook failed"):
        cheap.run()
    path = cheap.directory().path
    _, lines = cheap.run(seed=3)
    assert lines[0] == f"tiny: runs in {cheap.directory(2).path}"
    assert lines[1] == f"  {path} is unfinished and left alone: seed: 0 -> 3"
    assert cheap.record().status == "FAILED"
    _, lines = cheap.run()
    assert lines[0] == f"tiny: resumes in {path}"
    assert "from initializers" in lines[1]
    assert evaluations(lines) == cheap.steps() == [10, 20]


def test_a_checkpoint_whose_files_are_lost_is_not_replaced_by_random_weights(failed: Runs) -> None:
    for file in failed.directory().checkpoints.glob("model.ckpt-10.*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="no such checkpoint is there"):
        failed.run()


def test_a_start_that_fails_leaves_no_run_that_seems_to_run(failed: Runs) -> None:
    for file in failed.directory().checkpoints.glob("model.ckpt-10.data*"):
        file.write_bytes(b"")
    failed.directory().update(status="KILLED")
    for _ in range(2):  # The directory is released too.
        with pytest.raises(CheckpointError, match="none of its checkpoints is whole"):
            failed.run()
        assert failed.record().status == "FAILED"


def test_a_run_killed_at_its_last_step_only_evaluates_and_ends(finished: Runs, whole: Runs) -> None:
    files = sorted(finished.directory().checkpoints.iterdir())
    times = [file.stat().st_mtime_ns for file in files]
    finished.directory().update(status="RUNNING", objective=None)
    _, lines = finished.run()
    assert evaluations(lines) == [20]
    assert not any("steps/s" in line for line in lines)
    assert_same_result(whole, finished)
    assert sorted(finished.directory().checkpoints.iterdir()) == files
    assert [file.stat().st_mtime_ns for file in files] == times


def test_beside_a_finished_run_the_same_command_makes_another_with_the_same_result(
    finished: Runs, whole: Runs
) -> None:
    before = finished.files()
    _, lines = finished.run()
    assert lines[0] == f"tiny: runs in {finished.directory(2).path}"
    assert before.items() <= finished.files().items()
    assert_same_result(whole, finished, 2)


def test_a_changed_warm_start_is_refused_in_a_folder_of_its_own(failed: Runs, whole: Runs) -> None:
    (first, *_) = failed.shown(mode=Mode.plan)
    assert first.startswith(f"mode=train would resume {failed.directory().path}")
    changed = failed.config(scaffolds=warm(str(whole.directory().checkpoints)))
    for mode in (Mode.train, Mode.plan):
        changed.mode = mode
        with pytest.raises(RunDirectoryError) as caught:
            failed.start(changed, dedicated=True)
        message = str(caught.value)
        assert f"the warm start has changed since {failed.directory().path} began" in message
        assert "scaffolds.body: (absent) -> " in message
        assert "resume=never" in message
        shown = any(line.split()[:3] == ["body/dense/bias", "4", "body"] for line in failed.lines())
        assert shown is (mode is Mode.plan)
    assert failed.count() == 1


def test_a_plan_is_printed_as_json_or_html(runs: Runs, whole: Runs) -> None:
    runs.changes = {"mode": Mode.plan, "scaffolds": warm(str(whole.directory().checkpoints))}
    plan = json.loads("\n".join(runs.shown(plan=PlanConfig(PlanFormat.json))))
    assert plan["sound"] is True
    assert plan["sources"]["body"]["path"].startswith(str(whole.directory().checkpoints))
    restoration = RestorationConfig(expect={"body": Expect.scratch})
    with pytest.raises(PlanError, match="the plan has 1 problem"):
        runs.shown(plan=PlanConfig(PlanFormat.html), restoration=restoration)
    page = "\n".join(runs.lines())
    assert page.startswith("<!DOCTYPE html>")
    assert page.endswith("</html>")
    assert not runs.folder.exists()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"hooks": {"mine": {"_target_": "builtins.dict"}}},
            ConfigError,
            r"builtins\.dict is not a tf\.compat\.v1\.train\.Sess",
        ),
        (
            {"scaffolds": warm("/nowhere")},
            PlanError,
            r"scaffolds\.body\.checkpoint: there is no checkpoint",
        ),
    ],
    ids=["configuration", "plan"],
)
def test_a_mistake_leaves_nothing_behind(
    runs: Runs, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        runs.run(**changes)
    assert not runs.folder.exists()


def test_a_warm_start_brings_the_sources_values(runs: Runs, whole: Runs) -> None:
    few = TrainConfig(steps=2)
    _, lines = runs.run(scaffolds=warm(str(whole.directory().checkpoints)), seed=5, train=few)
    assert "  6 of 8 model variables (" in lines[1]
    assert "  body: 6 variables (52 values) from" in lines[2]
    assert "; 19 tensors unused; sha256:" in lines[2]
    values, source = runs.values(), whole.values()
    assert np.array_equal(values["body/dense/kernel"], source["body/dense/kernel"])
    assert not np.array_equal(values["head/kernel"], source["head/kernel"])


def test_the_state_of_a_scheduled_optimizer_goes_with_its_variables(
    plain: Runs, tmp_path: Path
) -> None:
    slow = ScaffoldConfig(VariablesConfig(["body/*"]), None, learning_rate_multiplier=0.5)
    source = Runs(tmp_path / "source", **PLAIN)
    source.run(scaffolds={"body": slow})
    checkpoint, state = str(source.directory().checkpoints), list(StateChoice)[:2]
    state += [StateChoice.optimizer_slots]
    again = replace(slow, checkpoint=checkpoint, state=state)
    both = ScaffoldConfig(VariablesConfig(["body/*", "head/*"]), checkpoint, state=state)
    for number, (scaffold, name) in enumerate(
        [(again, "rate_x0.5/beta1_power"), (both, "beta1_power")], 1
    ):
        plain.run(scaffolds={"part": scaffold}, train=TrainConfig(steps=1, evaluate_every=1))
        values = tf.train.load_checkpoint(str(plain.directory(number).checkpoints))
        kept = 0.9 ** np.arange(1, 30)
        assert values.get_tensor(name) == pytest.approx(kept[21], rel=1e-5), "20 steps and one"
        plan = json.loads(plain.directory(number).plan_json.read_text())
        (power,) = (each for each in plan["variables"] if each["name"] == name)
        assert power["origin"] == "checkpoint"


def test_a_run_that_another_process_finished_meanwhile_is_not_taken_for_resumed(
    failed: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new run that starts in its place has a plan like any other."""

    def finish_first(*arguments: Any, **options: Any) -> RunDirectory:
        failed.directory().update(status="FINISHED")
        return open_run(*arguments, **options)

    monkeypatch.setattr("runner.training.run.open_run", finish_first)
    _, lines = failed.run()
    assert lines[0] == f"tiny: runs in {failed.directory(2).path}"
    assert "from initializers" in lines[1]
    assert failed.directory(2).plan.exists()


def test_a_run_that_another_process_left_meanwhile_is_resumed(
    failed: Runs, whole: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.training.run.interrupted_run", lambda *arguments, **options: None)
    _, lines = failed.run()
    assert lines[0] == f"tiny: resumes in {failed.directory().path}"
    assert "pretrained sources not read" in lines[1]
    assert_same_result(whole, failed)
