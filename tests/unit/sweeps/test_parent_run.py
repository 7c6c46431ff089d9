from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from runner.config.masking import Mask
from runner.config.schema import TrackingConfig
from runner.errors import TrackingError
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.parent_run import close_parent, name_trials, open_parent, settle_trials
from runner.sweeps.sweep_directory import SweepDirectory
from runner.system.status import Status
from runner.tracking import LoggingStore
from runner.tracking.journal import End, Journal
from runner.tracking.tracker import LoggingTracker
from runner.tracking.tracking_directory import Opening, TrackingDirectory
from tests.tiny.configs import tiny

pytestmark = pytest.mark.usefixtures("forked_followers")


@pytest.fixture
def uri(migrated_database: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'mlflow.db')}"


def test_a_sweep_that_goes_on_has_one_run(uri: str, tmp_path: Path) -> None:
    config = tiny(tracking=TrackingConfig(uri=uri))
    for status in (Status.KILLED, Status.FINISHED):
        tracker = open_parent(tmp_path / "sweep", config, "tiny", ["+experiment=tiny", "seed=1,2"])
        close_parent(tracker, status, {"runner.sweep.trials": "2"})
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("tiny sweep", "FINISHED")
    assert run.data.tags["runner.overrides"] == "+experiment=tiny seed=1,2"
    assert run.data.tags["runner.sweep.trials"] == "2"


def test_the_parent_run_has_no_trials_secrets(tmp_path: Path) -> None:
    config = tiny(tracking=TrackingConfig(uri=None, tensorboard=True))
    mask = Mask(config.tracking.mask, {}, [{"data": {"token": f"secret-{n}"}} for n in range(2)])
    overrides = ["data.token=secret-0,secret-1", "data.path=/secret-0,/secret-1"]
    tracker = open_parent(tmp_path / "sweep", config, "tiny", overrides, mask)
    tracker.log_text("secret-0 secret-1", "summary.txt")
    close_parent(tracker, Status.FINISHED, {})
    files = TrackingDirectory(tmp_path / "sweep")
    opening = files.opening()
    assert opening is not None
    assert opening.tags["runner.overrides"] == "data.token=*** data.path=/***,/***"
    (journal,) = files.journal.glob("*.journal")
    assert '"*** ***"' in journal.read_text()


def test_a_sweep_over_experiments_has_a_name_of_its_own(uri: str, tmp_path: Path) -> None:
    config = tiny(tracking=TrackingConfig(uri=uri))
    close_parent(open_parent(tmp_path / "sweep", config, None, []), Status.FINISHED, {})
    assert MlflowClient(uri).get_experiment_by_name("sweep") is not None


def test_one_process_records_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.tracking.tracking_directory._CLAIM_SECONDS", 0.01)
    config = tiny(tracking=TrackingConfig(uri=None, tensorboard=True))
    tracker = open_parent(tmp_path / "sweep", config, "tiny", [])
    with pytest.raises(TrackingError, match="another process records from it"):
        open_parent(tmp_path / "sweep", config, "tiny", [])
    tracker.close(Status.FINISHED)


def test_what_a_killed_sweep_has_not_seen_delivered_is_delivered(uri: str, tmp_path: Path) -> None:
    sweep = SweepDirectory(tmp_path / "sweep")
    run = RunDirectory(tmp_path / "run")
    sweep.add([Attempt(0, 1, (), {}, run_dir=str(run.path)), Attempt(1, 1, (), {})])
    files = TrackingDirectory(run.path)
    files.write_opening(Opening("u", "tiny", "one", {}, str(sweep.path), (uri,)))
    journal = Journal(files.journal)
    journal.append(End(Status.FINISHED))
    journal.close()
    provenance = run.provenances[0]
    provenance.write_text(json.dumps({"schema": 1, "run": {"run_id": None}}))

    config = tiny(tracking=TrackingConfig(uri=uri))
    tracker = open_parent(sweep.path, config, "tiny", [])
    close_parent(tracker, Status.FINISHED, {})
    name_trials(sweep.path, config)
    position = files.position(uri)
    assert position.status == "FINISHED"
    assert json.loads(provenance.read_text())["run"] == {"run_id": position.run_id}
    found = MlflowClient(uri).get_run(str(position.run_id))
    assert found.data.tags["mlflow.parentRunId"] == (
        TrackingDirectory(sweep.path).position(uri).run_id
    )


class _Closed(LoggingTracker):
    """Notes how long its end may take."""

    seconds: float | None = None

    def close(self, status: Status, seconds: float | None = None) -> None:
        self.seconds = seconds


def test_the_end_of_a_sweep_takes_what_is_left_of_the_grace_period() -> None:
    tracker = _Closed("sweep")
    close_parent(tracker, Status.KILLED, {}, 3.5)
    assert tracker.seconds == 3.5


class _Settled(LoggingStore):
    """Notes what it is to settle."""

    def __init__(self) -> None:
        self.paths: list[Path] = []

    def settle(self, directory: Path) -> None:
        self.paths.append(directory)


def test_runs_that_could_not_say_that_they_were_killed_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _Settled()
    monkeypatch.setattr("runner.sweeps.parent_run.open_store", lambda *arguments: store)
    died = RunDirectory(tmp_path / "runs" / "001")
    died.path.mkdir(parents=True)
    died.write(RunRecord("tiny", "f", Status.RUNNING, {}))
    saved = Attempt(0, 1, (), {}, status=TrialStatus.KILLED, run_dir=str(tmp_path / "saved"))
    others = [
        Attempt(1, 1, (), {}, status=TrialStatus.FINISHED, run_dir=str(tmp_path / "finished")),
        Attempt(2, 1, (), {}, status=TrialStatus.KILLED),
    ]
    configs = [tiny(run_dir=str(tmp_path / name)) for name in ("runs", "absent")]
    settle_trials(configs, [saved, *others])
    assert store.paths == [died.path, tmp_path / "saved"]
    assert died.require().status == Status.KILLED
