from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runner.tracking.records import End, Metrics

from runner.system.status import Status
from runner.tracking.follower_process import (
    Answers,
    FollowerProcess,
    SharedFollower,
    living_follower,
    shared_follower,
)
from runner.tracking.journal import Journal
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.tracking_directory import Opening, TrackingDirectory


@pytest.fixture
def directory(tmp_path: Path, database: Path) -> TrackingDirectory:
    directory = TrackingDirectory(tmp_path / "run")
    uri = f"sqlite:///{database}"
    directory.write_opening(Opening("u", "digits", "one", {}, None, (uri,)))
    return directory


def test_it_delivers_what_it_is_told_to_and_ends(
    directory: TrackingDirectory, database: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # Wherever it is started, it finds the package.
    directory.claim()
    process = FollowerProcess()
    process.start(f"sqlite:///{database}")
    process.follow(directory.run_directory)
    journal = Journal(directory.journal)
    journal.append(Metrics({"loss": 0.5}, 1, 0))
    journal.append(End(Status.FINISHED))
    journal.close()
    directory.release()
    assert process.finish(directory.run_directory, 60.0) == []
    (run,) = MlflowStore(f"sqlite:///{database}").finished("digits", {})
    assert f"is open as run {run.run_id}." in directory.log.read_text()


@pytest.mark.usefixtures("forked_followers")
@pytest.mark.parametrize("uri", [None, "sqlite:///{}/notes.db"])
def test_one_that_is_never_told_ends_at_once(uri: str | None, tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("notes " * 1000)
    process = FollowerProcess()
    process.start(uri and uri.format(tmp_path))
    assert process.end(60.0)


@pytest.mark.usefixtures("forked_followers")
def test_the_store_is_opened_before_the_run_is_known(database: Path) -> None:
    process = FollowerProcess()
    process.start(f"sqlite:///{database}")
    assert process.end(60.0)
    assert Path(f"{database}.lock").exists()


@pytest.mark.usefixtures("forked_followers")
def test_no_database_is_made_for_a_run_that_never_begins(tmp_path: Path) -> None:
    process = FollowerProcess()
    process.start(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert process.end(60.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("forked_followers")
def test_what_it_warns_of_is_logged_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = FollowerProcess()
    process.start(None)
    process.follow(tmp_path)
    assert process.finish(tmp_path, 60.0) == [tmp_path]
    deadline = time.monotonic() + 10.0
    while "holds nothing to deliver" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_that_cannot_be_started_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    process = FollowerProcess()
    process.start(None)
    process.follow(tmp_path)
    assert process.finish(tmp_path, 1.0) == [tmp_path]
    assert "not delivered for now" in caplog.text


@pytest.mark.usefixtures("forked_followers")
def test_one_that_has_died_is_told(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    process = FollowerProcess()
    process.start(None)
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.wait()
    process.follow(tmp_path)
    assert process.finish(tmp_path, 1.0) == [tmp_path]
    assert "not delivered for now" in caplog.text


@pytest.mark.usefixtures("forked_followers")
def test_one_that_takes_long_is_left_to_itself(directory: TrackingDirectory) -> None:
    directory.claim()
    process = FollowerProcess()
    process.start(None)
    process.follow(directory.run_directory)
    assert not process.end(0.0)
    directory.release()
    assert process._process is not None
    assert process._process.wait(60.0) == 0


@pytest.mark.usefixtures("forked_followers")
def test_one_that_is_left_does_its_work(directory: TrackingDirectory, database: Path) -> None:
    process = FollowerProcess()
    process.start(None)
    process.follow(directory.run_directory)
    process.leave()
    assert process._process is not None
    assert process._process.wait(60.0) == 0
    assert directory.position(f"sqlite:///{database}").status == "KILLED"


LEAVING = """
import os, threading
from runner.tracking.follower_process import FollowerProcess
follower = FollowerProcess()
follower.start(None)
pid = follower._process.pid
del follower
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
while threading.active_count() > 1:
    threading.enumerate()[-1].join()
"""


def test_one_that_has_ended_is_not_warned_of_as_still_running() -> None:
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", LEAVING]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""


def test_one_that_is_dropped_ends(tmp_path: Path) -> None:
    process = FollowerProcess()
    process.start(None)
    child = process._process
    assert child is not None
    del process
    assert child.wait(60.0) == 0


def _record(directory: TrackingDirectory) -> None:
    """Records a step of a run, and that it has ended."""
    journal = Journal(directory.journal)
    journal.append(Metrics({"loss": 0.5}, 1, 0))
    journal.append(End(Status.FINISHED))
    journal.close()
    directory.release()


@pytest.mark.usefixtures("forked_followers")
def test_a_shared_one_delivers_several_runs_and_the_sweep_waits_for_its_trials(
    tmp_path: Path, database: Path
) -> None:
    uri = f"sqlite:///{database}"

    def opened(name: str, parent: Path | None = None) -> TrackingDirectory:
        directory = TrackingDirectory(tmp_path / name)
        directory.write_opening(Opening(name, "digits", name, {}, None, (uri,)))
        directory.claim()
        follower.follow(directory.run_directory, parent)
        return directory

    assert living_follower(uri) is None
    follower = shared_follower(uri)
    assert shared_follower(uri) is living_follower(uri) is follower
    # Of a sweep in another process a trial waits for itself.
    alone = opened("alone", tmp_path / "elsewhere")
    _record(alone)
    assert follower.finish(alone.run_directory, 60.0) == []
    assert alone.position(uri).status == "FINISHED"

    # The follower dies with the sweep and a trial under way; the next trial has another process.
    sweep = opened("sweep")
    first = opened("first", sweep.run_directory)
    process = follower._process
    assert process is not None
    process.kill()
    process.wait()
    _record(first)
    assert follower.finish(first.run_directory, 60.0) == []
    assert shared_follower(uri) is follower
    assert follower.lives
    second = opened("second", sweep.run_directory)
    _record(second)
    nothing = tmp_path / "nothing"
    follower.follow(nothing, sweep.run_directory)
    began = time.monotonic()
    assert follower.finish(second.run_directory, 60.0) == []
    assert time.monotonic() - began < 0.1
    _record(sweep)
    assert follower.finish(sweep.run_directory, 60.0) == [nothing]
    found = MlflowStore(uri).finished("digits", {})
    assert {run.name for run in found} == {"alone", "sweep", "first", "second"}
    assert f"as run {sweep.position(uri).run_id}." in sweep.log.read_text()
    assert f"as run {sweep.position(uri).run_id}." not in second.log.read_text()

    # Its end comes with that of this process, or when it is left for good.
    FollowerProcess.leave(follower)
    assert follower._process is not None
    follower._process.wait(60.0)


def test_the_wait_for_a_sweep_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    follower = SharedFollower()  # It is not started, and answers nothing.
    trial = tmp_path / "trial"
    follower.follow(tmp_path)
    follower.follow(trial, tmp_path)
    assert follower.finish(trial, 60.0) == []
    assert follower.finish(tmp_path, 60.0, longest=0.0) == [tmp_path, trial]


def test_a_directory_that_is_told_of_twice_is_answered_twice() -> None:
    answers = Answers()
    assert not answers.wait("run", 0.0)
    answers.expect("run")
    answers.expect("run")
    answers.give("run", delivered=True)
    assert not answers.wait("run", 0.0)
    answers.give("run", delivered=True)
    assert answers.wait("run", 0.0)
    answers.expect("run")
    answers.end()
    assert not answers.wait("run", 60.0)
