"""One run from its start to its end, interrupted in every way that needs no second process."""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
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
    TrackingConfig,
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
)
from runner.run import run_experiment
from runner.run_directory import RunDirectory, RunRecord, open_run
from runner.screen import Screen
from runner.sync import sync
from runner.tracking import RunStatus
from runner.tracking.journal import read_lines, segments
from runner.tracking.records import End
from runner.tracking.tracking_directory import TrackingDirectory
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


class _Tracked(_Runs):
    """Runs that are recorded in a database."""

    def __init__(self, folder: Path, database: Path) -> None:
        super().__init__(folder)
        self.database = database
        self.uri = f"sqlite:///{database}"
        self.client = MlflowClient(self.uri)

    def config(self, **changes: Any) -> RunConfig:
        tracking = TrackingConfig(uri=self.uri, close_seconds=60.0, patience_seconds=1.0)
        return super().config(tracking=tracking, **changes)

    def run_id(self, number: int = 1) -> str:
        """MLflow's id of a run."""
        run_id = TrackingDirectory(self.directory(number).path).position(self.uri).run_id
        assert run_id is not None
        return run_id

    def seem_killed(self, **changes: Any) -> None:
        """Makes the first run look as if its process and its follower had died on the way."""
        self.client.update_run(self.run_id(), RunStatus.RUNNING.value)
        self.directory().update(status="RUNNING")
        files = TrackingDirectory(self.directory().path)
        for segment in segments(files.journal):
            whole = list(read_lines(segment.path))
            ends = [each.end for each in whole if not isinstance(each.record, End)]
            os.truncate(segment.path, ends[-1])
        last = segments(files.journal)[-1]
        size = last.path.stat().st_size
        position = replace(
            files.position(self.uri), offset=size, sending=size, status="RUNNING", ended=None
        )
        files.write_position(self.uri, replace(position, **changes))

    def settled(self, number: int = 1) -> None:
        """Waits until the store has been told how a run ended."""
        files = TrackingDirectory(self.directory(number).path)
        wait_for(lambda: files.position(self.uri).status not in (None, "RUNNING"))


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


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


def test_a_run_killed_before_its_first_checkpoint_was_listed_resumes_from_it(
    runs: _Runs, tmp_path: Path
) -> None:
    hooks = _hook("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        runs.run(hooks=hooks)
    (runs.directory().checkpoints / "checkpoint").unlink()
    _, lines = runs.run(hooks=hooks)
    assert "pretrained sources not read" in lines[1]
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
    tracked: _Tracked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(runner.training, "_record_end", signalled)
        with pytest.raises(InterruptedRunError, match="ended by SIGINT"):
            tracked.run()
    assert tracked.record().status == "RUNNING"
    gc.collect()  # What the process would have held to its death, which is the test's to survive.
    tracked.run(resume=Resume.never)
    assert tracked.record().status == "KILLED"
    tracked.settled()
    assert tracked.client.get_run(tracked.run_id()).info.status == "KILLED"


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


def test_a_plan_with_problems_leaves_nothing_behind(runs: _Runs, tmp_path: Path) -> None:
    source = _Runs(tmp_path / "source")
    source.run()
    scaffolds = _warm(str(source.directory().checkpoints))
    scaffolds["body"].rename = {"body/": "trunk/"}
    with pytest.raises(PlanError, match="none named trunk/dense/kernel"):
        runs.run(scaffolds=scaffolds)
    assert not runs.folder.exists()


def test_a_missing_source_leaves_nothing_behind(runs: _Runs, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"scaffolds\.body\.checkpoint: there is no checkpoint"
    ):
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
def tracked(migrated_database: Path, tmp_path: Path) -> _Tracked:
    """Runs that are tracked; their stores are given up after a second."""
    database = Path(shutil.copy(migrated_database, tmp_path / "mlflow.db"))
    return _Tracked(tmp_path / "runs", database)


def test_a_store_that_is_lost_on_the_way_does_not_stop_training(
    tracked: _Tracked, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = _hook("Overwrite", step=13, marker=str(tmp_path / "marker"), file=str(tracked.database))
    tracked.run(hooks=hooks)
    assert (tracked.record().status, tracked.steps()) == ("FINISHED", [10, 20])
    assert "Not all that the run recorded is delivered yet." in caplog.text
    assert f"python -m runner.sync {tracked.directory().path}" in caplog.text


def test_a_run_whose_record_was_deleted_is_not_continued_untold(
    tracked: _Tracked, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = _hook("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        tracked.run(hooks=hooks)
    run_id = tracked.run_id()
    assert tracked.client.get_run(run_id).info.status == "FAILED"
    tracked.client.delete_run(run_id)
    tracked.run(hooks=hooks)
    assert tracked.record().status == "FINISHED"
    assert f"run {run_id} cannot be recorded any further" in caplog.text
    assert f"runs restore --run-id {run_id}" in caplog.text
    assert tracked.client.get_run(run_id).info.status == "FAILED"
    tracked.client.restore_run(run_id)
    assert sync(TrackingDirectory(tracked.directory().path))
    assert tracked.run_id() == run_id
    assert tracked.client.get_run(run_id).info.status == "FINISHED"


def test_a_run_that_was_killed_outright_is_settled_by_the_next_one(
    tracked: _Tracked, tmp_path: Path
) -> None:
    """Also where its follower died with it."""
    hooks = _hook("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        tracked.run(hooks=hooks)
    killed, run_id = tracked.directory(), tracked.run_id()
    tracked.seem_killed()

    living = RunDirectory(tracked.directory(2).path)
    living.claim()
    living.write(replace(killed.require(), fingerprint="another"))
    tracked.run(hooks=hooks, resume=Resume.never)
    living.release()
    statuses = [tracked.record(number).status for number in (1, 2, 3)]
    assert statuses == ["KILLED", "RUNNING", "FINISHED"]
    tracked.settled()
    assert tracked.client.get_run(run_id).info.status == "KILLED"


def test_a_killed_run_that_the_store_does_not_know_is_recorded_anew(tracked: _Tracked) -> None:
    tracked.run()
    tracked.seem_killed(run_id="0" * 32)
    tracked.directory().update(fingerprint="another")
    tracked.run()
    assert [tracked.record(number).status for number in (1, 2)] == ["KILLED", "FINISHED"]
    files = TrackingDirectory(tracked.directory().path)
    wait_for(lambda: f"has no run {'0' * 32} any more" in files.log.read_text())
    wait_for(lambda: files.position(tracked.uri).status == "KILLED")
