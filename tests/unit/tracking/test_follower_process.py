from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.system.status import Status
from runner.tracking.follower_process import MLFLOW, FollowerProcess, serve, start_follower
from runner.tracking.journal import End, Journal, Metrics
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.tracking_directory import RunIdentity, TrackingDirectory
from tests.support.runs import wait_for

pytestmark = pytest.mark.usefixtures("forked_followers")


def open_run(path: Path, uri: str, *, patience_seconds: float = 60.0) -> TrackingDirectory:
    directory = TrackingDirectory(path)
    identity = RunIdentity(path.name, "digits", path.name, {}, None, (uri,))
    directory.write_identity(replace(identity, patience_seconds=patience_seconds))
    directory.claim()
    return directory


def end_run(directory: TrackingDirectory) -> None:
    """Records a step of a run, and that it has ended."""
    journal = Journal(directory.journal)
    journal.append(Metrics({"loss": 0.5}, 1, 0))
    journal.append(End(Status.FINISHED))
    journal.close()
    directory.release()


@pytest.fixture
def follower() -> Iterator[FollowerProcess]:
    """A follower that is not started yet; what it has left is done when the test ends."""
    follower = FollowerProcess()
    yield follower
    ended(follower)


def ended(follower: FollowerProcess) -> int | None:
    """Closes a follower and returns its exit code."""
    follower.close()
    return None if follower._process is None else follower._process.wait(60.0)


def kill(follower: FollowerProcess) -> None:
    assert follower._process is not None
    follower._process.kill()
    follower._process.wait()


def test_one_that_takes_long_is_left_to_itself(
    follower: FollowerProcess, tmp_path: Path, database: Path
) -> None:
    uri = f"sqlite:///{database}"
    names = ("alone", "sweep", "trial")
    runs = alone, sweep, trial = [open_run(tmp_path / name, uri) for name in names]
    follower.start(None)
    follower.follow(alone.run_directory)
    follower.follow(sweep.run_directory)
    follower.follow(trial.run_directory, sweep.run_directory)
    assert follower.finish(alone.run_directory, 0.0) == [alone.run_directory]
    assert follower.finish(trial.run_directory, 60.0) == []
    left = follower.finish(sweep.run_directory, 60.0, remaining=lambda: 0.5)
    assert left == [sweep.run_directory, trial.run_directory]
    for run in runs:
        run.release()
    assert ended(follower) == 0
    assert [run.position(uri).status for run in runs] == ["KILLED"] * 3


def test_what_it_warns_of_is_logged_here(
    follower: FollowerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    follower.start(None)
    follower.follow(tmp_path)
    wait_for(lambda: "holds nothing to deliver" in caplog.text)
    assert follower.finish(tmp_path, 60.0) == [tmp_path]


def test_a_run_waits_no_longer_than_the_delivery_is_tried(
    follower: FollowerProcess, tmp_path: Path
) -> None:
    run = open_run(tmp_path / "run", "http://127.0.0.1:9", patience_seconds=0.0)
    for _ in range(2):  # Also where the delivery has been given up before.
        follower.start(None)
        follower.follow(run.run_directory)
        end_run(run)
        assert follower.finish(run.run_directory, 600.0) == [run.run_directory]
        run.claim()


def test_one_that_cannot_be_started_or_has_died_is_reported(
    follower: FollowerProcess,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise FileNotFoundError("no python")

    with monkeypatch.context() as patch:
        patch.setattr("runner.tracking.follower_process.subprocess.Popen", fail)
        follower.start(None)
    follower.follow(tmp_path)
    assert follower.finish(tmp_path, 60.0) == [tmp_path]
    assert "not delivered for now: no python" in caplog.text
    caplog.clear()
    follower.start(None)
    kill(follower)
    follower.follow(tmp_path)
    assert follower.finish(tmp_path, 60.0) == [tmp_path]
    assert "not delivered for now" in caplog.text


def test_one_process_delivers_all_runs_and_a_sweep_waits_for_its_trials(
    tmp_path: Path, database: Path
) -> None:
    uri = f"sqlite:///{database}"
    follower = start_follower(uri)
    assert start_follower(uri) is follower
    # A trial of a sweep in another process waits for itself.
    alone = open_run(tmp_path / "alone", uri)
    follower.follow(alone.run_directory, tmp_path / "elsewhere")
    end_run(alone)
    assert follower.finish(alone.run_directory, 60.0) == []
    assert alone.position(uri).status == "FINISHED"

    # The follower dies with the sweep and a trial under way; the next trial has another process.
    sweep, first = open_run(tmp_path / "sweep", uri), open_run(tmp_path / "first", uri)
    follower.follow(sweep.run_directory)
    follower.follow(first.run_directory, sweep.run_directory)
    kill(follower)
    end_run(first)
    assert follower.finish(first.run_directory, 60.0) == []
    assert start_follower(uri) is follower
    second, nothing = open_run(tmp_path / "second", uri), tmp_path / "nothing"
    follower.follow(second.run_directory, sweep.run_directory)
    follower.follow(nothing, sweep.run_directory)
    end_run(second)
    assert follower.finish(second.run_directory, 60.0) == []
    end_run(sweep)
    assert follower.finish(sweep.run_directory, 60.0) == [nothing]
    found = MlflowStore(uri).finished("digits", {})
    assert {run.tags["mlflow.runName"] for run in found} == {"alone", "sweep", "first", "second"}
    assert f"as run {sweep.position(uri).run_id}." in sweep.log.read_text()
    assert f"as run {sweep.position(uri).run_id}." not in second.log.read_text()


def test_one_that_was_killed_is_started_again_at_the_end(
    follower: FollowerProcess, tmp_path: Path, database: Path
) -> None:
    uri = f"sqlite:///{database}"
    run = open_run(tmp_path / "run", uri)
    follower.start(uri)
    follower.follow(run.run_directory)
    kill(follower)
    end_run(run)
    assert follower.finish(run.run_directory, 60.0) == []
    assert run.position(uri).status == "FINISHED"


LEAVING = """
import os, sys, threading
from pathlib import Path
from runner.tracking.follower_process import start_follower
os.chdir(sys.argv[1])  # From any folder it finds the package.
follower = start_follower(None)
follower.follow(Path("nothing").absolute())
left = follower.finish(Path("nothing").absolute(), 60.0)
follower.close()
os.waitid(os.P_PID, follower._process.pid, os.WEXITED | os.WNOWAIT)
for thread in threading.enumerate():
    if thread.daemon:
        thread.join()  # It passes on the warnings.
assert left, "there is nothing to deliver"
"""


def test_a_real_process_is_not_warned_of_at_exit(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", LEAVING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "holds nothing to deliver" in done.stderr
    assert "ResourceWarning" not in done.stderr


def test_mlflow_is_imported_and_no_store_opened_before_a_run_is_known(
    monkeypatch: pytest.MonkeyPatch, database: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("os.nice", lambda increment: increment)
    imported: list[str] = []
    monkeypatch.setattr("importlib.import_module", imported.append)
    assert serve(MLFLOW)
    assert imported == ["runner.tracking.mlflow_store"]
    assert list(database.parent.iterdir()) == [database]
