"""Processes that die while a run records into a local database."""

from __future__ import annotations

from pathlib import Path

from mlflow import MlflowClient

from tests.tiny.following import twin
from tests.tiny.forked import Forks
from tests.tiny.recording import Recording
from tests.tiny.runs import wait_for


def test_a_run_whose_processes_are_killed_has_each_point_once(
    tmp_path: Path, database: Path, forks: Forks
) -> None:
    run = Recording(forks, tmp_path / "run", f"sqlite:///{database}")
    run.record(500)
    run.kill()
    # The process that delivers outlives it.
    wait_for(lambda: run.directory.position(run.uri).status == "KILLED", 120.0)
    assert run.history() == twin(500)
    assert run.status() == "KILLED"
    wait_for(lambda: not run.is_followed())
    # The same command resumes from its checkpoint.
    again = Recording(forks, tmp_path / "run", run.uri, start=400)
    again.record(300)
    again.delivered(700)
    assert again.status() == "RUNNING"
    again.record(2000)
    again.kill(follower=True)
    assert 700 <= len(again.history()) < 2700
    # The next one delivers the rest.
    last = Recording(forks, tmp_path / "run", run.uri, start=2600)
    last.record(200)
    assert last.end() == ""
    assert last.history() == twin(2800)
    assert last.status() == "FINISHED"
    assert len(MlflowClient(tracking_uri=run.uri).search_runs(["1"])) == 1
