"""One run from its start to its end, interrupted in every way that needs no second process."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from mlflow import MlflowClient
from rich.console import Console

import runner.run
import runner.training
from runner.config import (
    Mode,
    Resume,
    RunConfig,
    ScaffoldConfig,
    StateChoice,
    TrainConfig,
    VariablesConfig,
)
from runner.errors import (
    CheckpointError,
    ConfigError,
    InterruptedRunError,
    NonFiniteLossError,
    PlanError,
    RunDirectoryError,
    TrackingError,
)
from runner.run import run_experiment
from runner.run_directory import RunDirectory, RunRecord, open_run
from runner.screen import Screen
from runner.tracking import RunStatus
from runner.tracking.mlflow_tracker import MlflowStore
from tests.tiny.configs import tiny


class _Runs:
    """Runs tiny experiments in one folder and tells what they left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def config(self, **changes: Any) -> RunConfig:
        return tiny(run_dir=str(self.folder), **changes)

    def run(self, **changes: Any) -> tuple[float, list[str]]:
        """Returns the objective and the lines on the screen."""
        objective = run_experiment(self.config(**changes), screen=self.screen())
        assert objective is not None
        return objective, self.lines()

    def screen(self) -> Screen:
        self._file = io.StringIO()
        return Screen(Console(file=self._file, width=200, highlight=False))

    def lines(self) -> list[str]:
        return self._file.getvalue().splitlines()

    def directory(self, number: int = 1) -> RunDirectory:
        return RunDirectory(self.folder / f"{number:03d}")

    def record(self, number: int = 1) -> RunRecord:
        return self.directory(number).require()

    def steps(self, kind: str = "checkpoints", number: int = 1) -> list[int]:
        files = (self.directory(number).path / kind).glob("*.index")
        return sorted(int(file.stem.rpartition("-")[2]) for file in files)

    def values(self, number: int = 1) -> dict[str, np.ndarray]:
        reader = tf.train.load_checkpoint(str(self.directory(number).checkpoints))
        names = [name for name in reader.get_variable_to_shape_map() if "Iterator" not in name]
        return {name: reader.get_tensor(name) for name in names if name != "iterator"}

    def count(self) -> int:
        return len([each for each in self.folder.glob("*") if each.name.isdigit()])


@pytest.fixture
def runs(tmp_path: Path) -> _Runs:
    return _Runs(tmp_path / "runs")


def _hook(name: str, **arguments: Any) -> dict[str, Any]:
    return {"disturb": {"_target_": f"tests.tiny.hooks.{name}", **arguments}}


def _evaluations(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if "  validation  " in line]


def _train(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"steps": 20, "log_every": 5, "evaluate_every": 10, **changes})


def test_a_run_leaves_checkpoints_records_and_its_objective(runs: _Runs) -> None:
    objective, lines = runs.run()
    assert runs.steps() == [10, 20]
    record = runs.record()
    assert (record.status, record.objective) == ("FINISHED", objective)
    best = json.loads(runs.directory().best_record.read_text())
    assert best["metrics"]["loss"] == objective
    assert runs.steps("best") == [best["step"]]
    assert _evaluations(lines) == [10, 20]
    assert [line.split()[1] for line in lines if "steps/s" in line] == [
        "5/20",
        "10/20",
        "15/20",
        "20/20",
    ]
    assert runs.values()["global_step"] == 20
    for file in (runs.directory().config, runs.directory().overrides, runs.directory().plan):
        assert file.stat().st_size > 0


def test_the_last_step_is_evaluated_and_saved_once_whatever_the_rhythm(runs: _Runs) -> None:
    _, lines = runs.run(train=_train(steps=17, checkpoint_every=5, keep_checkpoints=3))
    assert _evaluations(lines) == [10, 17]
    assert runs.steps() == [10, 15, 17]


def test_the_same_configuration_gives_the_same_result(runs: _Runs) -> None:
    first, _ = runs.run()
    second, _ = runs.run()
    assert runs.count() == 2
    assert first == second
    for name, value in runs.values(1).items():
        assert np.array_equal(value, runs.values(2)[name]), name


def test_a_run_that_failed_is_continued_as_if_it_had_not(runs: _Runs, tmp_path: Path) -> None:
    hooks = _hook("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    assert (runs.record().status, runs.steps()) == ("FAILED", [10])
    objective, lines = runs.run(hooks=hooks)
    assert lines[0] == f"tiny: resumes in {runs.directory().path}"
    assert "pretrained sources not read" in lines[1]
    assert (runs.record().status, runs.steps(), runs.count()) == ("FINISHED", [10, 20], 1)

    whole = _Runs(tmp_path / "whole")
    assert whole.run(hooks=hooks)[0] == objective
    for name, value in whole.values().items():
        assert np.array_equal(value, runs.values()[name]), name


def test_a_preempted_session_is_recovered_within_the_run(runs: _Runs, tmp_path: Path) -> None:
    hooks = _hook("AbortOnce", step=13, marker=str(tmp_path / "marker"))
    objective, lines = runs.run(hooks=hooks)
    assert (runs.record().status, runs.steps()) == ("FINISHED", [10, 20])
    assert _evaluations(lines) == [10, 20]
    assert _Runs(tmp_path / "whole").run(hooks=hooks)[0] == objective


def test_a_run_killed_before_its_first_checkpoint_begins_again(runs: _Runs, tmp_path: Path) -> None:
    hooks = _hook("FailOnce", step=3, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    objective, lines = runs.run(hooks=hooks)
    assert lines[0] == f"tiny: resumes in {runs.directory().path}"
    assert "from initializers" in lines[1]
    assert objective == _Runs(tmp_path / "whole").run(hooks=hooks)[0]


def test_a_run_killed_while_it_wrote_its_first_checkpoint_begins_again(
    runs: _Runs, tmp_path: Path
) -> None:
    hooks = _hook("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    (runs.directory().checkpoints / "checkpoint").unlink()
    _, lines = runs.run(hooks=hooks)
    assert "from initializers" in lines[1]
    assert runs.steps() == [10, 20]


def test_a_checkpoint_whose_files_are_lost_is_not_replaced_by_random_weights(
    runs: _Runs, tmp_path: Path
) -> None:
    hooks = _hook("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    for file in runs.directory().checkpoints.glob("model.ckpt-10.*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="no such checkpoint is there"):
        runs.run(hooks=hooks)


def test_a_run_killed_at_its_last_step_only_evaluates_and_ends(runs: _Runs) -> None:
    objective, _ = runs.run()
    files = sorted(runs.directory().checkpoints.iterdir())
    times = [file.stat().st_mtime_ns for file in files]
    runs.directory().update(status="RUNNING", objective=None)
    again, lines = runs.run()
    assert again == objective
    assert _evaluations(lines) == [20]
    assert not any("steps/s" in line for line in lines)
    assert runs.record().status == "FINISHED"
    assert sorted(runs.directory().checkpoints.iterdir()) == files
    assert [file.stat().st_mtime_ns for file in files] == times


def test_a_finished_run_is_not_touched(runs: _Runs) -> None:
    runs.run()
    before = {
        path: path.read_bytes() for path in runs.directory().path.rglob("*") if path.is_file()
    }
    _, lines = runs.run()
    assert lines[0] == f"tiny: runs in {runs.directory(2).path}"
    assert {path: path.read_bytes() for path in before} == before


def test_resume_never_leaves_the_interrupted_run_alone(runs: _Runs, tmp_path: Path) -> None:
    hooks = _hook("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    runs.run(hooks=hooks, resume=Resume.never)
    assert [runs.record(1).status, runs.record(2).status] == ["FAILED", "FINISHED"]
    assert runs.steps(number=1) == [10]


def test_resume_must_starts_nothing(runs: _Runs) -> None:
    with pytest.raises(RunDirectoryError, match="holds no interrupted run"):
        runs.run(resume=Resume.must)
    assert runs.count() == 0


def test_a_signal_ends_the_run_with_a_checkpoint_of_its_last_step(
    runs: _Runs, tmp_path: Path
) -> None:
    hooks = _hook("SignalOnce", step=13, marker=str(tmp_path / "marker"), number=15)
    with pytest.raises(InterruptedRunError, match="SIGTERM"):
        runs.run(hooks=hooks)
    assert (runs.record().status, runs.steps()) == ("KILLED", [10, 13])
    assert _evaluations(runs.lines()) == [10]
    objective, lines = runs.run(hooks=hooks)
    assert lines[0] == f"tiny: resumes in {runs.directory().path}"
    assert objective == _Runs(tmp_path / "whole").run(hooks=hooks)[0]


def test_a_hook_may_end_the_run_early(runs: _Runs) -> None:
    _, lines = runs.run(hooks=_hook("StopEarly", step=7))
    assert (runs.record().status, runs.steps()) == ("FINISHED", [7])
    assert _evaluations(lines) == [7]


def _blobs(**arguments: int) -> dict[str, Any]:
    return {"_target_": "tests.tiny.experiment.Blobs", "batch_size": 8, "seed": 0, **arguments}


def test_a_loss_of_nan_stops_the_run(runs: _Runs) -> None:
    data = _blobs(poison_after=13)
    with pytest.raises(NonFiniteLossError, match=r"the loss is nan at step 14\n") as caught:
        runs.run(data=data)
    (problem,) = caught.value.problems
    assert problem.cause.endswith(f"is {runs.directory().checkpoints / 'model.ckpt-10'}")
    assert problem.remedy.endswith("optimizer.learning_rate=0.005")
    assert (runs.record().status, runs.steps()) == ("FAILED", [10])
    # The same command goes on from the last checkpoint, to the same end.
    with pytest.raises(NonFiniteLossError):
        runs.run(data=data)
    assert runs.lines()[0] == f"tiny: resumes in {runs.directory().path}"
    assert runs.count() == 1


def test_training_data_that_end_are_not_the_end_of_training(runs: _Runs) -> None:
    data = {"_target_": "tests.tiny.odd.Once"}
    with pytest.raises(ConfigError, match=r"data\.train\(\) ended before step 20"):
        runs.run(data=data)
    assert runs.record().status == "FAILED"


def test_training_data_whose_position_cannot_be_saved_are_told(runs: _Runs) -> None:
    _, lines = runs.run(data={"_target_": "tests.tiny.odd.Generated"})
    (line,) = [each for each in lines if each.startswith("input:")]
    assert "position is not saved (GeneratorDataset does not support checkpointing.)" in line
    assert (runs.record().status, runs.steps()) == ("FINISHED", [10, 20])


@pytest.mark.parametrize("hook", ["FailOnce", "AbortOnce"])
def test_they_start_anew_where_the_configuration_says_so(
    runs: _Runs, tmp_path: Path, hook: str
) -> None:
    changes: dict[str, Any] = {
        "data": {"_target_": "tests.tiny.odd.Generated"},
        "train": _train(save_input=False, checkpoint_every=5, keep_checkpoints=9),
        "hooks": _hook(hook, step=13, marker=str(tmp_path / "marker")),
    }
    if hook == "FailOnce":
        with pytest.raises(ValueError, match="the hook failed"):
            runs.run(**changes)
    runs.run(**changes)
    assert (runs.record().status, runs.steps()) == ("FINISHED", [5, 10, 15, 20])


def test_an_empty_validation_split_is_an_error(runs: _Runs) -> None:
    with pytest.raises(ConfigError, match=r"data\.validation\(\) gives no example"):
        runs.run(data={"_target_": "tests.tiny.odd.NoValidation"})
    assert runs.record().status == "FAILED"


def test_a_hook_with_a_wrong_argument_is_refused(runs: _Runs) -> None:
    with pytest.raises(ConfigError, match=r"hooks\.disturb\.stap"):
        runs.run(hooks=_hook("StopEarly", step=7, stap=8))
    assert not runs.folder.exists()


def test_a_hook_that_is_none_is_refused(runs: _Runs) -> None:
    with pytest.raises(ConfigError, match=r"builtins\.dict is not a tf\.compat\.v1\.train\.Sess"):
        runs.run(hooks={"mine": {"_target_": "builtins.dict"}})
    assert not runs.folder.exists()


def test_what_is_unfinished_is_told_by_the_plan_and_by_another_run(
    runs: _Runs, tmp_path: Path
) -> None:
    hooks = _hook("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    run_experiment(runs.config(hooks=hooks, mode=Mode.plan), screen=runs.screen())
    assert runs.lines()[0].startswith(f"mode=train would resume {runs.directory().path}")
    _, lines = runs.run(hooks=hooks, seed=3)
    assert lines[0] == f"tiny: runs in {runs.directory(2).path}"
    assert lines[1] == f"  {runs.directory().path} is unfinished and left alone: seed: 0 -> 3"


def test_a_signal_while_the_run_is_closed_ends_the_process_but_not_the_run(
    runs: _Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_end = runner.training._record_end

    def signalled(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        record_end(*arguments)

    monkeypatch.setattr(runner.training, "_record_end", signalled)
    with pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
        runs.run()
    assert runs.record().status == "FINISHED"


def test_an_end_that_a_second_signal_cuts_short_is_settled_later(
    runs: _Runs, store: tuple[Path, MlflowStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, opened = store

    def signalled(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(runner.training, "_record_end", signalled)
        with pytest.raises(InterruptedRunError, match="ended by SIGINT"):
            runs.run()
    assert runs.record().status == "RUNNING"
    run_id = runs.record().tracking_run_id
    runs.run(resume=Resume.never)
    assert runs.record().status == "KILLED"
    assert MlflowClient(opened.address.uri).get_run(str(run_id)).info.status == "KILLED"


def _warm(checkpoint: str) -> dict[str, ScaffoldConfig]:
    return {"body": ScaffoldConfig(VariablesConfig(["body/*"]), checkpoint, trainable=False)}


def test_a_warm_start_brings_the_sources_values(runs: _Runs, tmp_path: Path) -> None:
    source = _Runs(tmp_path / "source")
    source.run()
    _, lines = runs.run(scaffolds=_warm(str(source.directory().checkpoints)), seed=5)
    assert "  body: 6 variables (52 values) from" in lines[1]
    assert "; 19 tensors unused; sha256:" in lines[1]
    kernel = source.values()["body/dense/kernel"]
    assert np.array_equal(runs.values()["body/dense/kernel"], kernel)
    assert not np.array_equal(runs.values()["head/kernel"], source.values()["head/kernel"])


def test_the_state_of_a_scheduled_optimizer_goes_with_its_variables(
    runs: _Runs, tmp_path: Path
) -> None:
    slow = ScaffoldConfig(VariablesConfig(["body/*"]), None, learning_rate_multiplier=0.5)
    source = _Runs(tmp_path / "source")
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


def test_a_plan_with_problems_leaves_nothing_behind(runs: _Runs, tmp_path: Path) -> None:
    source = _Runs(tmp_path / "source")
    source.run()
    scaffolds = _warm(str(source.directory().checkpoints))
    scaffolds["body"].rename = {"body/": "trunk/"}
    with pytest.raises(PlanError, match="none named trunk/dense/kernel"):
        runs.run(scaffolds=scaffolds)
    assert not runs.folder.exists()


def test_a_missing_source_leaves_nothing_behind(runs: _Runs, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"scaffolds\.body\.checkpoint: there is no checkpoint"):
        runs.run(scaffolds=_warm(str(tmp_path / "nowhere")))
    assert not runs.folder.exists()


def test_a_run_that_another_process_finished_meanwhile_is_not_taken_for_resumed(
    runs: _Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new run that starts in its place is warm-started like any other."""
    source = _Runs(tmp_path / "source")
    source.run()
    scaffolds = _warm(str(source.directory().checkpoints))
    hooks = _hook("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(scaffolds=scaffolds, hooks=hooks)

    def finish_first(*arguments: Any, **options: Any) -> RunDirectory:
        runs.directory().update(status="FINISHED")
        return open_run(*arguments, **options)

    monkeypatch.setattr(runner.run, "open_run", finish_first)
    _, lines = runs.run(scaffolds=scaffolds, hooks=hooks)
    assert lines[0] == f"tiny: runs in {runs.directory(2).path}"
    assert "  body: 6 variables" in lines[1]
    kernel = source.values()["body/dense/kernel"]
    assert np.array_equal(runs.values(2)["body/dense/kernel"], kernel)


def test_a_run_that_another_process_left_meanwhile_is_resumed(
    runs: _Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = _hook("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    monkeypatch.setattr(runner.run, "interrupted_run", lambda *arguments, **options: None)
    _, lines = runs.run(hooks=hooks)
    assert lines[0] == f"tiny: resumes in {runs.directory().path}"
    assert "pretrained sources not read" in lines[1]
    assert runs.count() == 1


@pytest.fixture
def store(
    migrated_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, MlflowStore]:
    """The runs' tracking store, and its database; it gives up after a second."""
    database = Path(shutil.copy(migrated_database, tmp_path / "mlflow.db"))
    opened = MlflowStore(f"sqlite:///{database}", drain_seconds=1.0)
    monkeypatch.setattr(runner.run, "open_store", lambda uri: opened)
    return database, opened


def test_a_store_that_is_lost_on_the_way_does_not_stop_training(
    runs: _Runs, store: tuple[Path, MlflowStore], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database, _ = store
    hooks = _hook("Overwrite", step=13, marker=str(tmp_path / "marker"), file=str(database))
    runs.run(hooks=hooks)
    assert (runs.record().status, runs.steps()) == ("FINISHED", [10, 20])
    assert "not delivered" in caplog.text
    assert "its status FINISHED could not be recorded" in caplog.text


def test_a_run_whose_record_was_deleted_is_not_continued_untold(
    runs: _Runs, store: tuple[Path, MlflowStore], tmp_path: Path
) -> None:
    _, opened = store
    hooks = _hook("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    run_id = runs.record().tracking_run_id
    assert run_id is not None
    MlflowClient(opened.address.uri).delete_run(run_id)
    with pytest.raises(TrackingError, match=f"run {run_id} cannot be resumed"):
        runs.run(hooks=hooks)
    assert runs.record().status == "FAILED"
    MlflowClient(opened.address.uri).restore_run(run_id)
    runs.run(hooks=hooks)
    assert runs.record().tracking_run_id == run_id
    assert MlflowClient(opened.address.uri).get_run(run_id).info.status == "FINISHED"


def test_a_run_that_was_killed_outright_is_settled_by_the_next_one(
    runs: _Runs, store: tuple[Path, MlflowStore], tmp_path: Path
) -> None:
    _, opened = store
    hooks = _hook("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    killed, run_id = runs.directory(), runs.record().tracking_run_id
    assert run_id is not None
    killed.update(status="RUNNING")
    MlflowClient(opened.address.uri).update_run(run_id, RunStatus.RUNNING.value)

    living = RunDirectory(runs.directory(2).path)
    living.claim()
    living.write(replace(killed.require(), fingerprint="another"))
    runs.run(hooks=hooks, resume=Resume.never)
    living.release()
    assert [runs.record(number).status for number in (1, 2, 3)] == ["KILLED", "RUNNING", "FINISHED"]
    assert MlflowClient(opened.address.uri).get_run(run_id).info.status == "KILLED"


def test_a_killed_run_that_the_store_does_not_know_is_only_told(
    runs: _Runs, store: tuple[Path, MlflowStore]
) -> None:
    runs.run()
    runs.directory().update(status="RUNNING", tracking_run_id="0" * 32, fingerprint="another")
    _, lines = runs.run()
    assert lines[0] == f"run {'0' * 32} cannot be marked KILLED"
    assert [runs.record(number).status for number in (1, 2)] == ["KILLED", "FINISHED"]
