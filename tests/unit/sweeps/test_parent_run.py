"""The parent run of a sweep in the tracking store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from runner.config.masking import Mask
from runner.config.schema import TrackingConfig
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.sweeps.parent_run import ParentRun
from runner.sweeps.sweep_directory import Attempt, SweepDirectory
from runner.system.status import Status
from runner.tracking import RunStore
from runner.tracking.journal import End, Journal
from runner.tracking.tracking_directory import RunIdentity, TrackingDirectory
from tests.support.configs import tiny

pytestmark = pytest.mark.usefixtures("forked_followers")


@pytest.fixture
def uri(migrated_database: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'mlflow.db')}"


def _runs(uri: str, experiment: str) -> Mapping[str, Any]:
    """Returns name -> run of an experiment in MLflow."""
    client = MlflowClient(uri)
    tracked = client.get_experiment_by_name(experiment)
    assert tracked is not None
    runs = client.search_runs([tracked.experiment_id])
    assert len({run.info.run_name for run in runs}) == len(runs)
    return {run.info.run_name: run for run in runs}


def test_a_sweep_that_is_resumed_has_one_run(uri: str, directory: SweepDirectory) -> None:
    config = tiny(tracking=TrackingConfig(uri=uri))
    for status in (Status.KILLED, Status.FINISHED):
        overrides = ["+experiment=tiny", "seed=1,2"]
        parent = ParentRun(directory, config, ["tiny"], overrides=overrides)
        parent.close(status, {"runner.sweep.trials": "2"})
    runs = _runs(uri, "tiny")
    assert set(runs) == {"tiny sweep"}
    sweep = runs["tiny sweep"]
    assert sweep.info.status == "FINISHED"
    assert sweep.data.tags["runner.overrides"] == "+experiment=tiny seed=1,2"
    assert sweep.data.tags["runner.sweep.trials"] == "2"


def test_the_parent_run_has_no_trials_secrets_and_a_name(directory: SweepDirectory) -> None:
    config = tiny(tracking=TrackingConfig(uri=None, tensorboard=True))
    mask = Mask(config.tracking.mask, {}, [{"data": {"token": f"secret-{n}"}} for n in range(2)])
    overrides = ["data.token=secret-0,secret-1", "data.path=/secret-0,/secret-1"]
    parent = ParentRun(directory, config, ["tiny", "warm"], overrides=overrides, mask=mask)
    parent.tracker.log_text("secret-0 secret-1", "summary.txt")
    parent.close(Status.FINISHED, {})
    files = TrackingDirectory(directory.path)
    identity = files.identity()
    assert identity is not None
    # Over experiments, it has none of theirs.
    assert (identity.experiment, identity.run_name) == ("sweep", "sweep")
    assert identity.tags["runner.overrides"] == "data.token=*** data.path=/***,/***"
    (journal,) = files.journal.glob("*.journal")
    assert '"*** ***"' in journal.read_text()


def test_what_a_killed_sweep_has_not_seen_delivered_is_delivered(
    uri: str, directory: SweepDirectory, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "run")
    directory.add([Attempt(0, run_dir=str(run.path)), Attempt(1)])
    files = TrackingDirectory(run.path)
    files.write_identity(RunIdentity("u", "tiny", "one", {}, str(directory.path), (uri,)))
    journal = Journal(files.journal)
    journal.append(End(Status.FINISHED))
    journal.close()
    provenance = run.provenances[0]
    provenance.write_text(json.dumps({"schema": 2, "run": {"run_id": None}}))

    config = tiny(tracking=TrackingConfig(uri=uri))
    parent = ParentRun(directory, config, ["tiny"], overrides=[])
    parent.close(Status.FINISHED, {})
    child = _runs(uri, "tiny")["one"]
    assert child.info.status == "FINISHED"
    assert json.loads(provenance.read_text())["run"] == {"run_id": child.info.run_id}
    sweep = _runs(uri, "tiny")["tiny sweep"]
    assert child.data.tags["mlflow.parentRunId"] == sweep.info.run_id


class _Delivered(RunStore):
    """Records which runs it is to deliver."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[Path] = []

    def deliver_rest(self, directory: Path) -> None:
        self.paths.append(directory)


def test_runs_that_could_not_record_that_they_were_killed_are_marked(
    directory: SweepDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _Delivered()
    monkeypatch.setattr("runner.sweeps.parent_run.open_store", lambda *arguments: store)
    configs = [tiny(run_dir=str(tmp_path / name)) for name in ("runs", "absent")]
    parent = ParentRun(directory, configs[0], ["tiny"], overrides=[])
    died = RunDirectory(tmp_path / "runs" / "001")
    died.path.mkdir(parents=True)
    died.write(RunRecord("tiny", "f", Status.RUNNING, {}))
    directory.add(
        [
            Attempt(0, status=Status.KILLED, run_dir=str(tmp_path / "saved")),
            Attempt(1, status=Status.FINISHED, run_dir=str(tmp_path / "finished")),
            Attempt(2, status=Status.KILLED),
        ]
    )
    parent.mark_killed_trials(configs)
    assert store.paths == [died.path, tmp_path / "saved"]
    assert died.load_record().status == Status.KILLED
    parent.close(Status.FINISHED, {})
