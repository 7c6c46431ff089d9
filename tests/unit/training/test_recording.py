"""The record of a run, also of one that is cut short or whose store is lost."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

import runner.training.recording
from runner.config.choices import Goal, Resume
from runner.config.schema import RunConfig, TrackingConfig
from runner.errors import InterruptedRunError, PrunedRunError, SweepError, UserCodeError
from runner.runs.run_directory import RunDirectory
from runner.sweeps.job import Trial
from runner.tracking.delivery import sync
from runner.tracking.journal import history
from runner.tracking.tracking_directory import Position, TrackingDirectory
from tests.support.configs import LINEAR
from tests.support.runs import Runs, disturbed, short, wait_for


class TrackedRuns(Runs):
    """Runs that are recorded in a database; their stores are given up after a second."""

    def __init__(self, folder: Path, database: Path) -> None:
        super().__init__(folder, **LINEAR)
        self.database, self.uri = database, f"sqlite:///{database}"
        self.client = MlflowClient(self.uri)

    def config(self, **changes: Any) -> RunConfig:
        tracking = TrackingConfig(uri=self.uri, close_seconds=60.0, patience_seconds=1.0)
        return super().config(tracking=tracking, **changes)

    def position(self, number: int = 1) -> Position:
        """Returns how far a run is delivered."""
        return TrackingDirectory(self.directory(number).path).position(self.uri)

    def tracked(self, number: int = 1) -> Run:
        """A run as MLflow has it."""
        return self.client.get_run(str(self.position(number).run_id))


@pytest.fixture
def tracked(migrated_database: Path, tmp_path: Path, forked_followers: None) -> TrackedRuns:
    database = Path(shutil.copy(migrated_database, tmp_path / "mlflow.db"))
    return TrackedRuns(tmp_path / "runs", database)


def test_a_signal_while_the_run_is_closed_leaves_it_finished(
    cheap: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_end = runner.training.recording._record_end

    def signalled(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        record_end(*arguments)

    monkeypatch.setattr(runner.training.recording, "_record_end", signalled)
    cheap.run()
    assert cheap.record().status == "FINISHED"


def test_an_end_that_a_second_signal_cuts_short_is_settled_later(
    tracked: TrackedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(runner.training.recording, "_record_end", signalled)
        with pytest.raises(InterruptedRunError, match="ended by SIGINT"):
            tracked.run(train=short(steps=2))
    gc.collect()  # What the process would have held to its death, which is the test's to survive.
    living = RunDirectory(tracked.directory(2).path)
    living.claim()
    living.write(replace(tracked.record(), fingerprint="another"))
    assert tracked.record().status == "RUNNING"
    tracked.run(resume=Resume.never, train=short(steps=2))
    living.release()
    statuses = [tracked.record(number).status for number in (1, 2, 3)]
    assert statuses == ["KILLED", "RUNNING", "FINISHED"]
    wait_for(lambda: tracked.position().status not in (None, "RUNNING"))
    assert tracked.tracked().info.status == "KILLED"

    inputs = tracked.tracked(3).inputs
    assert inputs is not None
    (used,) = inputs.dataset_inputs
    assert used.dataset.name == "tests.samples.experiment.Blobs"
    assert [tag.value for tag in used.tags] == ["train"]
    assert json.loads(str(used.dataset.profile)) == {"train": 64, "validation": 20, "test": 20}
    assert len(used.dataset.digest) == 16


def test_no_process_resumes_a_pruned_trial_and_its_own_a_failed_one(
    cheap: Runs, tmp_path: Path
) -> None:
    cheap.changes["hooks"] = disturbed("FailOnce", step=13, marker=str(tmp_path / "marker"))

    def trial(number: int, *, prune: bool = False) -> Trial:
        return Trial(str(tmp_path / "sweep"), {}, lambda metrics, step: prune, number=number)

    with pytest.raises(PrunedRunError, match="pruned at step 10"):
        cheap.start(cheap.config(), trial(0, prune=True))
    with pytest.raises(UserCodeError, match="the hook failed"):
        cheap.start(cheap.config(), trial(1))
    cheap.start(cheap.config(), trial(1))
    evaluations = history(TrackingDirectory(cheap.directory(2).path).journal).items()
    assert [step for step, values in evaluations if "validation/loss" in values] == [10, 20]
    assert [cheap.record(number).status for number in (1, 2)] == ["PRUNED", "FINISHED"]
    assert cheap.count() == 2


def test_a_trial_whose_objective_is_nan_has_failed_and_only_evaluates_again(
    cheap: Runs, tmp_path: Path
) -> None:
    config = cheap.config(data={"_target_": "tests.samples.odd.NanInValidation"})
    for _ in range(2):
        with pytest.raises(SweepError, match="the objective is nan"):
            cheap.start(config, Trial(str(tmp_path / "sweep"), {}))
        assert cheap.record().status == "FAILED"
    assert not [line for line in cheap.lines() if line.startswith("step") and "20/20" in line]
    assert cheap.count() == 1


def test_a_store_that_is_lost_on_the_way_does_not_stop_training(
    tracked: TrackedRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = disturbed(
        "Overwrite", step=13, marker=str(tmp_path / "marker"), file=str(tracked.database)
    )
    tracked.run(hooks=hooks)
    assert (tracked.record().status, tracked.steps()) == ("FINISHED", [10, 20])
    assert "Not all that the run recorded is delivered yet." in caplog.text
    assert f"runner sync {tracked.directory().path}" in caplog.text


def test_an_error_is_shown_though_the_server_is_away(
    tracked: TrackedRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracked.uri = "http://localhost:9"
    hooks = disturbed("FailOnce", step=3, marker=str(tmp_path / "marker"))
    with pytest.raises(UserCodeError, match="the hook failed"):
        tracked.run(hooks=hooks)
    assert tracked.record().status == "FAILED"
    assert "the tracking store http://localhost:9 cannot be opened" in caplog.text


def test_a_run_whose_record_was_deleted_warns_as_it_continues(
    tracked: TrackedRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = disturbed("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(UserCodeError, match="the hook failed"):
        tracked.run(hooks=hooks)
    run_id = tracked.tracked().info.run_id
    assert tracked.tracked().info.status == "FAILED"
    assert tracked.tracked().data.tags["runner.exception"] == "ValueError: the hook failed"
    assert "traceback.txt" in [artifact.path for artifact in tracked.client.list_artifacts(run_id)]
    tracked.client.delete_run(run_id)
    tracked.run(hooks=hooks)
    assert tracked.record().status == "FINISHED"
    assert f"run {run_id} cannot be recorded any further" in caplog.text
    assert f"runs restore --run-id {run_id}" in caplog.text
    assert tracked.tracked().info.status == "FAILED"
    tracked.client.restore_run(run_id)
    assert sync(TrackingDirectory(tracked.directory().path))
    assert (tracked.tracked().info.run_id, tracked.tracked().info.status) == (run_id, "FINISHED")


def test_mlflow_has_what_was_chosen_and_the_figures(tracked: TrackedRuns) -> None:
    tracked.run(train=short(goal=Goal.minimize))
    run = tracked.tracked()
    given = {name for name in run.data.params if not name.startswith(("data.", "model.", "loss."))}
    assert {name for name in given if not name.startswith(("optimizer.", "train."))} == {
        *("name", "seed", "run_dir", "tracking.uri"),
        *("tracking.close_seconds", "tracking.patience_seconds"),
    }
    # The default of `train.checkpoint_every` is not among them.
    assert {name for name in given if name.startswith("train.")} == {
        *("train.steps", "train.log_every", "train.evaluate_every", "train.goal"),
    }
    figures = [file.path for file in tracked.client.list_artifacts(run.info.run_id, "figures")]
    assert figures == ["figures/learning_curves.png"]
    steps = history(TrackingDirectory(tracked.directory().path).journal)
    assert steps[10]["train_mean/loss"] != steps[10]["train/loss"]


def test_what_an_extension_sets_to_its_default_is_recorded_too(tracked: TrackedRuns) -> None:
    tracked.run(train=short(log_every=7))
    tracked.run(train=short(steps=30, log_every=50), resume=Resume.extend)
    run = tracked.tracked()
    assert run.data.params["train.log_every"] == "7"
    assert "train.log_every: 7 -> 50" in run.data.tags["runner.parameters_changed"]
