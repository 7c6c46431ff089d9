"""Processes that die while a run records into a local database."""

from __future__ import annotations

from pathlib import Path

from mlflow import MlflowClient

from tests.tiny.following import twin
from tests.tiny.forked import Forks
from tests.tiny.recording import Recording
from tests.tiny.runs import wait_for


def test_a_run_that_is_killed_has_its_last_point_delivered_and_is_killed(
    tmp_path: Path, database: Path, forks: Forks
) -> None:
    run = Recording(forks, tmp_path / "run", f"sqlite:///{database}")
    run.record(500)
    run.kill()
    wait_for(lambda: run.directory.position(run.uri).status == "KILLED", 120.0)
    assert run.history() == twin(500)
    assert run.status() == "KILLED"
    wait_for(lambda: not run.is_followed())
    # The same command resumes from its checkpoint.
    again = Recording(forks, tmp_path / "run", run.uri, start=400)
    again.record(300)
    again.delivered(700)
    assert again.status() == "RUNNING"
    assert again.end() == ""
    assert again.history() == twin(700)
    assert again.status() == "FINISHED"
    assert len(set(MlflowClient(tracking_uri=run.uri).search_runs(["1"]))) == 1


def test_when_both_die_the_next_start_delivers_the_rest(
    tmp_path: Path, database: Path, forks: Forks
) -> None:
    run = Recording(forks, tmp_path / "run", f"sqlite:///{database}")
    run.record(100)
    run.delivered(100)
    run.record(5000)
    run.kill(follower=True)
    delivered = len(run.history())
    assert 100 <= delivered < 5100
    again = Recording(forks, tmp_path / "run", run.uri, start=5000)
    again.record(200)
    assert again.end() == ""
    assert again.history() == twin(5200)
