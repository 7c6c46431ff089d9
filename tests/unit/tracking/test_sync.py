from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from mlflow import MlflowClient
from runner.tracking.records import End, Metrics

from runner.sync import main
from runner.system.status import Status
from runner.tracking.delivery import sync
from runner.tracking.follower_process import ANSWER, AWAIT
from runner.tracking.journal import Journal
from runner.tracking.tracking_directory import Opening, Position, TrackingDirectory


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def record(path: Path, uri: str, **changes: object) -> TrackingDirectory:
    directory = TrackingDirectory(path)
    opening = Opening("u" + path.name, "digits", path.name, {}, None, (uri,), patience_seconds=0.0)
    directory.write_opening(replace(opening, **changes))  # type: ignore[arg-type]
    journal = Journal(directory.journal)
    for step in range(5):
        journal.append(Metrics({"loss": step / 3}, step, step))
    journal.append(End(Status.FINISHED))
    journal.close()
    return directory


def runs(uri: str) -> dict[str, tuple[str, int]]:
    """Run name -> status and number of points."""
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    return {
        str(run.info.run_name): (
            str(run.info.status),
            len(client.get_metric_history(run.info.run_id, "loss")),
        )
        for run in client.search_runs([experiment.experiment_id])
    }


def test_what_was_left_is_delivered_and_a_second_time_nothing(
    tmp_path: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{database}"
    directory = record(tmp_path / "run", uri)
    assert main([str(directory.run_directory)]) == 0
    assert main([str(directory.run_directory)]) == 0
    assert runs(uri) == {"run": ("FINISHED", 5)}
    assert capsys.readouterr().out == ""


def test_all_stores_of_a_run_are_delivered_to(tmp_path: Path, database: Path) -> None:
    uri = f"sqlite:///{database}"
    directory = record(tmp_path / "run", uri, stores=(uri, "tensorboard:"))
    assert sync(directory)
    assert runs(uri) == {"run": ("FINISHED", 5)}
    assert len(list(directory.tensorboard.iterdir())) == 1


def test_a_store_that_is_away_holds_back_no_other(
    tmp_path: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = f"sqlite:///{tmp_path}/notes.db"
    (tmp_path / "notes.db").write_text("notes " * 1000)
    uri = f"sqlite:///{database}"
    directory = record(tmp_path / "run", uri, stores=(away, uri))
    assert main([str(directory.run_directory)]) == 1
    assert runs(uri) == {"run": ("FINISHED", 5)}
    told = capsys.readouterr().out
    assert "not a database" in told
    assert f"python -m runner.sync {directory.run_directory}" in told
    assert "not a database" in directory.log.read_text()


def test_a_run_can_be_delivered_to_another_store(tmp_path: Path, database: Path) -> None:
    uri = f"sqlite:///{database}"
    directory = record(tmp_path / "run", "http://127.0.0.1:9")
    assert main([str(directory.run_directory), "--uri", uri]) == 0
    assert runs(uri) == {"run": ("FINISHED", 5)}


def test_a_part_waits_for_the_run_that_it_is_a_part_of(tmp_path: Path, database: Path) -> None:
    uri = f"sqlite:///{database}"
    parent = record(tmp_path / "sweep", uri)
    part = record(tmp_path / "part", uri, parent=str(parent.run_directory))
    assert main([str(part.run_directory)]) == 1
    assert "is a part of the one in" in part.log.read_text()
    assert main([str(parent.run_directory)]) == 0
    assert main([str(part.run_directory)]) == 0
    run = MlflowClient(tracking_uri=uri).get_run(str(part.position(uri).run_id))
    assert run.data.tags["mlflow.parentRunId"] == parent.position(uri).run_id


def test_a_part_that_was_moved_with_its_database_needs_no_delivery_of_the_whole(
    tmp_path: Path, database: Path
) -> None:
    uri = f"sqlite:///{database}"
    old, new = tmp_path / "old", tmp_path / "new"
    parent = record(old / "sweep", uri)
    part = record(old / "part", uri, parent=str(parent.run_directory))
    assert main([str(parent.run_directory)]) == main([str(part.run_directory)]) == 0
    old.rename(new)
    moved = f"sqlite:///{database.rename(new / 'mlflow.db')}"
    assert main([str(new / "part"), "--uri", moved]) == 0
    assert runs(moved) == {"sweep": ("FINISHED", 5), "part": ("FINISHED", 5)}


@pytest.mark.parametrize("held", ["writer.lock", "lock"])
def test_a_part_waits_without_a_word_for_a_run_that_is_being_delivered(
    tmp_path: Path,
    database: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    held: str,
) -> None:
    uri = f"sqlite:///{database}"
    sweep = record(tmp_path / "sweep", uri)
    part = record(tmp_path / "part", uri, parent=str(sweep.run_directory))
    sweep.delivery_lock(uri)  # Makes the folder that holds it.
    waited: list[float] = []

    def deliver_the_sweep(wake: threading.Event, seconds: float) -> None:
        waited.append(seconds)
        sweep.write_position(uri, Position(run_id="0" * 32))

    monkeypatch.setattr("runner.tracking.delivery._wait", deliver_the_sweep)
    with FileLock((sweep.path if held == "writer.lock" else sweep.store(uri)) / held):
        assert main([str(part.run_directory)]) == 0
    assert waited == [0.5]
    assert capsys.readouterr().out == ""
    told = part.log.read_text()
    assert "cannot be opened yet" in told
    assert "whose delivery has not begun" in told
    assert f"see what hinders that: {sweep.log}" in told
    run = MlflowClient(tracking_uri=uri).get_run(str(part.position(uri).run_id))
    assert run.data.tags["mlflow.parentRunId"] == "0" * 32


def test_one_process_delivers_and_another_waits(tmp_path: Path, database: Path) -> None:
    uri = f"sqlite:///{database}"
    directory = record(tmp_path / "run", uri)
    other = directory.delivery_lock(uri)
    other.acquire()
    threading.Timer(0.3, other.release).start()
    assert sync(directory)
    assert runs(uri) == {"run": ("FINISHED", 5)}


def test_one_that_waits_in_vain_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("runner.tracking.delivery._LOCK_SECONDS", 0.5)
    directory = record(tmp_path / "run", "http://127.0.0.1:9")
    with directory.delivery_lock("http://127.0.0.1:9"):
        assert not sync(directory)
    assert "Another process delivers" in directory.log.read_text()


def test_a_directory_without_a_journal_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert "holds nothing to deliver" in capsys.readouterr().err


def test_a_malformed_uri_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = record(tmp_path / "run", "http://127.0.0.1:9")
    assert main([str(directory.run_directory), "--uri", "sqlit:///x"]) == 2
    assert "knows no scheme" in capsys.readouterr().err


class Pipe(io.StringIO):
    """Lets other threads write after each write, as a pipe's reader may."""

    def write(self, text: str) -> int:
        written = super().write(text)
        time.sleep(0.001)
        return written


def test_answers_given_at_the_same_time_are_lines_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(tmp_path / str(number)) for number in range(20)]
    both = Pipe()  # As in the process that follows runs.
    monkeypatch.setattr("sys.stdin", io.StringIO("\n" + "".join(f"{name}\n" for name in names)))
    monkeypatch.setattr("sys.stdout", both)
    monkeypatch.setattr("sys.stderr", both)
    monkeypatch.setattr("os.nice", lambda increment: increment)
    assert main([AWAIT]) == 1
    lines = both.getvalue().splitlines()
    assert sorted(line for line in lines if ANSWER in line) == sorted(
        f"{ANSWER}0{name}" for name in names
    )
    told = [line for line in lines if line.startswith("runner.sync: ")]
    assert len(told) == len(names)
