from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from runner.config.schema import TrackingConfig
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.parent_run import close_parent, open_parent
from runner.sweeps.points import ComposedPoint, Point
from runner.sweeps.sweep_directory import SweepDirectory
from runner.sweeps.unopened_runs import record_unopened, unopened_runs
from runner.system.status import Status
from runner.tracking.tracking_directory import TrackingDirectory
from tests.tiny.configs import tiny

DATA = {"_target_": "tests.tiny.experiment.Blobs", "api_key": "first-secret"}


def _failed(trial: int, number: int = 1, message: str = "there is no data") -> Attempt:
    values = {"data.api_key": "second-secret", "n": str(trial)}
    return Attempt(
        trial, number, ("n=1",), values, f"f{trial}", status=TrialStatus.FAILED, message=message
    )


def _children(uri: str) -> list[Run]:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    return [each for each in runs if "mlflow.parentRunId" in each.data.tags]


def _journal(directory: Path) -> str:
    files = TrackingDirectory(directory / "unopened" / "0001").journal.glob("*")
    return "".join(each.read_text() for each in sorted(files))


@pytest.mark.usefixtures("forked_followers")
def test_a_trial_without_a_run_of_its_own_is_a_failed_run(
    migrated_database: Path, tmp_path: Path
) -> None:
    uri = f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'mlflow.db')}"
    config = tiny(tracking=TrackingConfig(uri=uri), data=DATA)
    composed = [ComposedPoint(Point((), {}), config, "f1")]
    directory = SweepDirectory(tmp_path / "sweep")
    directory.add(
        [
            Attempt(0, 1, (), {}, status=TrialStatus.FAILED, run_dir=str(tmp_path / "run")),
            _failed(1),
            _failed(2),
            Attempt(2, 2, (), {}, status=TrialStatus.FINISHED, run_dir=str(tmp_path / "run")),
            Attempt(3, 1, (), {}, status=TrialStatus.SKIPPED),
        ]
    )
    for message in ("no second-secret", "nor this second-secret", None):
        tracker = open_parent(directory.path, config, "tiny", [])
        if message is not None:
            skipped = Attempt(1, 3, (), {}, status=TrialStatus.SKIPPED)
            directory.add([_failed(1, 2, message), skipped])
        before = _journal(directory.path)
        record_unopened(directory, composed)
        assert (_journal(directory.path) == before) is (message is None)
        close_parent(tracker, Status.FINISHED, {})
    (child,) = _children(uri)
    assert (child.info.run_name, child.info.status) == ("tiny trial 1", "FAILED")
    tags = child.data.tags
    assert tags["runner.exception"] == "nor this ***"
    assert (tags["runner.sweep.n"], tags["runner.sweep.data.api_key"]) == ("1", "***")
    assert tags["runner.overrides"] == "n=1"
    assert [each.name for each in unopened_runs(directory.path)] == ["0001"]


def test_nothing_is_recorded_where_tracking_is_off(tmp_path: Path) -> None:
    directory = SweepDirectory(tmp_path / "sweep")
    directory.add([_failed(0)])
    record_unopened(directory, [ComposedPoint(Point((), {}), tiny(), "f0")])
    assert unopened_runs(directory.path) == []
