"""A run is begun, resumed, or refused before anything is made."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config.choices import Expect, Mode, PlanFormat, StateClass
from runner.config.schema import (
    DevicesConfig,
    PlanConfig,
    RestorationConfig,
    ScaffoldConfig,
    TrackingConfig,
    VariablesConfig,
)
from runner.errors import (
    CheckpointError,
    ConfigError,
    InterruptedRunError,
    PlanError,
    RunDirectoryError,
    SaveError,
    TrackingUriError,
    UserCodeError,
)
from runner.planning.report import text
from runner.runs.resumption import ClaimedDirectory, claim_run
from runner.training.context import RunContext
from runner.training.experiment import Experiment
from tests.support.configs import LINEAR, tiny
from tests.support.privileges import folder_for_all
from tests.support.runs import Runs, disturbed, evaluations, short


def assert_same_result(one: Runs, other: Runs, number: int = 1) -> None:
    """Compares the objective and all values, bit for bit."""
    assert one.record().status == other.record(number).status == "FINISHED"
    assert one.record().objective == other.record(number).objective
    values, others = one.values(), other.values(number)
    assert values.keys() == others.keys()
    for name, value in values.items():
        assert np.array_equal(value, others[name]), name


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A finished run, only to be read."""
    runs = Runs(tmp_path_factory.mktemp("undisturbed") / "runs", **LINEAR)
    runs.run()
    return runs


@pytest.fixture(scope="module")
def _failed(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("failed")
    hooks = disturbed("FailOnce", step=13, marker=str(folder / "marker"))
    runs = Runs(folder / "runs", **LINEAR, hooks=hooks)
    with pytest.raises(UserCodeError, match="the hook failed"):
        runs.run()
    return runs


@pytest.fixture
def failed(_failed: Runs, tmp_path: Path) -> Runs:
    """A copy of a run that failed after step 13, with a checkpoint of step 10."""
    return _failed.copy(tmp_path / "runs")


def from_source(checkpoint: Path | str) -> dict[str, ScaffoldConfig]:
    """Returns `scaffolds` with the whole model from a checkpoint."""
    return {"all": ScaffoldConfig(VariablesConfig(["*"]), str(checkpoint))}


def test_a_run_that_failed_is_continued_as_if_it_had_not(failed: Runs, undisturbed: Runs) -> None:
    assert (failed.record().status, failed.steps()) == ("FAILED", [10])
    # Killed at once after its first save, it may be that the list of checkpoints lacks it.
    (failed.directory().checkpoints / "checkpoint").unlink()
    _, lines = failed.run()
    assert lines[0] == f"tiny: resumes in {failed.directory().path}"
    assert "reads no pretrained one" in lines[1]
    assert (failed.steps(), failed.count()) == ([10, 20], 1)
    assert_same_result(undisturbed, failed)


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


def test_a_folder_that_can_no_longer_be_written_is_reported_and_the_run_continues_later(
    cheap: Runs, undisturbed: Runs
) -> None:
    user = os.geteuid()
    with folder_for_all() as folder:
        runs = Runs(folder / "runs", **cheap.changes)
        lock = {"step": 13, "marker": str(folder / "marker"), "folder": str(runs.folder)}
        runs.changes["hooks"] = disturbed("LockFolder", **lock)
        try:
            with pytest.raises(
                SaveError, match=r"cannot be written\n  cause: Permission denied"
            ) as error:
                runs.run()
        finally:
            os.seteuid(user)
        assert "the same command then continues the run, with the same result" in str(error.value)
        for path in (runs.folder, *runs.folder.rglob("*")):
            path.chmod(0o755)
        _, lines = runs.run()
        assert lines[0] == f"tiny: resumes in {runs.directory().path}"
        assert_same_result(undisturbed, runs)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_at_the_end_is_reported_and_the_run_continues_later(
    code: int, cheap: Runs, undisturbed: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr("runner.training.recording.name_tracked_run", fail)
        with pytest.raises(SaveError, match=f"cannot be written\n  cause: {os.strerror(code)}"):
            cheap.run()
    cheap.run()
    assert cheap.count() == 1
    assert_same_result(undisturbed, cheap)


def test_a_run_stays_where_its_command_was_started(
    cheap: Runs, undisturbed: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    runs = Runs(Path("mine"), **cheap.changes)
    leave = {"step": 3, "marker": "left", "folder": str(tmp_path / "elsewhere")}
    runs.run(hooks=disturbed("Leave", **leave))
    assert Path("left").exists()
    assert Path.cwd() == tmp_path
    assert not any((tmp_path / "elsewhere").iterdir())
    assert_same_result(undisturbed, runs)


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


def test_a_run_killed_at_its_last_step_only_evaluates_and_ends(
    undisturbed: Runs, tmp_path: Path
) -> None:
    finished = undisturbed.copy(tmp_path / "runs")
    files = sorted(finished.directory().checkpoints.iterdir())
    times = [file.stat().st_mtime_ns for file in files]
    finished.directory().update(status="RUNNING", objective=None)
    _, lines = finished.run()
    assert evaluations(lines) == [20]
    assert not any("steps/s" in line for line in lines)
    assert_same_result(undisturbed, finished)
    assert sorted(finished.directory().checkpoints.iterdir()) == files
    assert [file.stat().st_mtime_ns for file in files] == times


def test_beside_a_finished_run_the_same_command_makes_another_with_the_same_result(
    undisturbed: Runs, tmp_path: Path
) -> None:
    finished = undisturbed.copy(tmp_path / "runs")
    before = finished.files()
    _, lines = finished.run()
    assert lines[0] == f"tiny: runs in {finished.directory(2).path}"
    assert before.items() <= finished.files().items()
    assert_same_result(undisturbed, finished, 2)


def test_a_changed_warm_start_is_refused_in_a_run(failed: Runs, undisturbed: Runs) -> None:
    (first, *_) = failed.shown(mode=Mode.plan)
    assert first.startswith(f"mode=train would resume {failed.directory().path}")
    changed = failed.config(
        scaffolds=from_source(undisturbed.directory().checkpoints),
        run_dir=str(failed.directory().path),
    )
    for mode in (Mode.train, Mode.plan):
        changed.mode = mode
        with pytest.raises(RunDirectoryError) as caught:
            failed.start(changed)
        message = str(caught.value)
        assert f"{failed.directory().path} is itself a run" in message
        assert "scaffolds.all: (absent) -> " in message
        shown = any(line.split()[:3] == ["weight", "scalar", "all"] for line in failed.lines())
        assert shown is (mode is Mode.plan)
    assert failed.count() == 1


def test_a_plan_says_how_devices_divide_a_step() -> None:
    experiment = Experiment(tiny(devices=DevicesConfig(2)), RunContext())
    plan = experiment.make_plan(experiment.build())
    (shown,) = [note for note in plan.notes if "divide" in note]
    assert f"note: {shown}" in text(plan)


def test_a_plan_is_printed_in_each_format(
    cheap: Runs, undisturbed: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = undisturbed.directory().checkpoints
    cheap.changes |= {"mode": Mode.plan, "scaffolds": from_source(source)}
    plan = json.loads("\n".join(cheap.shown(plan=PlanConfig(PlanFormat.json))))
    assert plan["sound"] is True
    assert plan["sources"]["all"]["path"].startswith(str(source))
    restoration = RestorationConfig(expect={"all": Expect.scratch})
    with pytest.raises(PlanError, match="the plan has 1 problem"):
        cheap.shown(plan=PlanConfig(PlanFormat.html), restoration=restoration)
    page = "\n".join(cheap.lines())
    assert page.startswith("<!DOCTYPE html>")
    assert page.endswith("</html>")
    monkeypatch.setenv("FORCE_COLOR", "1")  # A terminal gets a table.
    assert any("\x1b[" in line for line in cheap.shown())
    assert not cheap.folder.exists()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"hooks": {"mine": {"_target_": "builtins.dict"}}},
            ConfigError,
            r"builtins\.dict is not a tf\.compat\.v1\.train\.Sess",
        ),
        (
            {"scaffolds": from_source("/nowhere")},
            PlanError,
            r"scaffolds\.all\.checkpoint: there is no checkpoint",
        ),
        (
            {"tracking": TrackingConfig("sqlite:///:memory:")},
            TrackingUriError,
            "tracking.uri='sqlite:///:memory:' cannot be used",
        ),
        (
            {"tracking": TrackingConfig(f"sqlite:///{__file__}")},
            TrackingUriError,
            r"test_run\.py is not an SQLite database",
        ),
    ],
    ids=["configuration", "plan", "store", "file"],
)
def test_a_mistake_leaves_nothing_behind(
    cheap: Runs, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        cheap.run(**changes)
    assert not cheap.folder.exists()


def test_a_hook_that_refuses_its_arguments_leaves_no_run(cheap: Runs) -> None:
    stop = {"_target_": "runner.hooks.EarlyStoppingHook", "evaluation": "${run:evaluation}"}
    with pytest.raises(ConfigError, match=r"refuses its arguments\n.*patience is 0 and"):
        cheap.run(hooks={"stop": {**stop, "patience": 0}})
    assert cheap.count() == 0


def test_the_state_of_a_scheduled_optimizer_goes_with_its_variables(plain: Runs) -> None:
    slow = ScaffoldConfig(VariablesConfig(["body/*"]), learning_rate_multiplier=0.5)
    plain.run(scaffolds={"part": slow}, train=short(steps=1, evaluate_every=1))
    checkpoint, state = str(plain.directory().checkpoints), list(StateClass)[:2]
    state += [StateClass.optimizer_slots]
    again = replace(slow, checkpoint=checkpoint, state=state)
    both = ScaffoldConfig(VariablesConfig(["body/*", "head/*"]), checkpoint, state=state)
    # It belongs to all variables that train, so a part of them does not bring it along.
    for scaffold, origin in ((again, "initializer"), (both, "checkpoint")):
        shown = plain.shown(
            scaffolds={"part": scaffold}, mode=Mode.plan, plan=PlanConfig(PlanFormat.json)
        )
        plan = json.loads("\n".join(shown))
        (power,) = (each for each in plan["variables"] if each["name"] == "beta1_power")
        assert power["origin"] == origin


def test_a_run_that_another_process_finished_meanwhile_is_not_taken_for_resumed(
    failed: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new run that starts in its place has a plan like any other."""

    def finish_first(*arguments: Any, **options: Any) -> ClaimedDirectory:
        failed.directory().update(status="FINISHED")
        return claim_run(*arguments, **options)

    monkeypatch.setattr("runner.runs.resumption.claim_run", finish_first)
    _, lines = failed.run()
    assert lines[0] == f"tiny: runs in {failed.directory(2).path}"
    assert "from initializers" in lines[1]
    assert failed.directory(2).plan.exists()


def test_a_run_that_another_process_left_meanwhile_is_resumed(
    failed: Runs, undisturbed: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "runner.training.experiment.interrupted_run", lambda *arguments, **options: None
    )
    _, lines = failed.run()
    assert lines[0] == f"tiny: resumes in {failed.directory().path}"
    assert "reads no pretrained one" in lines[1]
    assert_same_result(undisturbed, failed)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        *((name, "TensorFlow takes") for name in ("[1]", "a*b", "what?", "a\\b")),
        *((name, "is read back as something else") for name in ("a\nb", "a${b}")),
    ],
)
def test_a_run_directory_that_would_not_be_found_again_is_refused(
    name: str, cause: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, RunDirectoryError), match=cause):
        Runs(tmp_path / name, **LINEAR).run()
    assert not list(tmp_path.iterdir())


def test_a_project_folder_that_tensorflow_takes_for_a_pattern_is_no_part_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "[1] what?*"
    project.mkdir()
    monkeypatch.chdir(project)
    runs = Runs(project / "runs", **LINEAR)
    runs.run()
    assert runs.directory().has_checkpoint()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"cd .*, and run_dir=runs"):
        runs.run(mode=Mode.evaluate)


# Between them, every other character that may be in a name.
@pytest.mark.soak
@pytest.mark.parametrize(
    "name", ["a b%41#=", "it's {}()~,;&", "-lead:@", "größe-日本", 'a"b$HOME|<>!', "x" * 200]
)
def test_a_run_directory_may_have_any_other_name(name: str, tmp_path: Path) -> None:
    runs = Runs(tmp_path / name, **LINEAR)
    with pytest.raises(InterruptedRunError):
        runs.run(hooks=disturbed("SignalOnce", step=2, number=15, marker=str(tmp_path / "sent")))
    runs.run(hooks=disturbed("SignalOnce", step=2, number=15, marker=str(tmp_path / "sent")))
    assert runs.record().status == "FINISHED"
