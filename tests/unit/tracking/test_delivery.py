from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf
from mlflow import MlflowClient

from runner.commands.command_line import main
from runner.system.status import Status
from runner.tracking.delivery import sync
from runner.tracking.event_files import EventFiles
from runner.tracking.journal import End, Journal, Metrics, Parameters, Record
from runner.tracking.tracking_directory import Position, RunIdentity, TrackingDirectory


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


GONE = "http://127.0.0.1:9"


@pytest.fixture
def uri(database: Path) -> str:
    return f"sqlite:///{database}"


def record(path: Path, uri: str, **changes: object) -> TrackingDirectory:
    directory = TrackingDirectory(path)
    identity = RunIdentity(
        "u" + path.name, "digits", path.name, {}, None, (uri,), patience_seconds=0.0
    )
    directory.write_identity(replace(identity, **changes))  # type: ignore[arg-type]
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


def test_what_was_left_is_delivered_to_all_stores_and_a_second_time_nothing(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = record(tmp_path / "run", GONE, stores=(GONE, "tensorboard:"))
    assert main(["sync", str(directory.run_directory), "--uri", uri]) == 0
    assert main(["sync", str(directory.run_directory)]) == 0
    assert runs(uri) == {"run": ("FINISHED", 5)}
    assert len(list(directory.tensorboard.iterdir())) == 1
    assert capsys.readouterr().out.count("all is delivered\n") == 2


def test_a_store_that_is_away_holds_back_no_other(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    away = f"sqlite:///{tmp_path}/notes.db"
    (tmp_path / "notes.db").write_text("notes " * 1000)
    directory = record(tmp_path / "run", uri, stores=(away, uri))
    assert main(["sync", str(directory.run_directory)]) == 1
    assert runs(uri) == {"run": ("FINISHED", 5)}
    printed = capsys.readouterr().out
    first, second, *_ = printed.splitlines()
    assert first == (
        f"delivering what {directory.run_directory} recorded to {away}, {uri}; "
        f"a store that cannot be reached is tried for 0 s"
    )
    assert second.startswith("Nothing can be delivered now; it is tried again for 0 s: ")
    assert "the run continues" not in printed
    assert "not a database" in printed
    assert f"runner sync {directory.run_directory}" in printed
    assert "not a database" in directory.log.read_text()


def test_a_part_needs_the_run_that_it_is_a_part_of_even_moved(
    tmp_path: Path, uri: str, database: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    parent = record(old / "sweep", uri)
    part = record(old / "part", uri, parent=str(parent.run_directory))
    assert main(["sync", str(part.run_directory)]) == 1
    assert "is a part of the one in" in part.log.read_text()
    assert main(["sync", str(parent.run_directory)]) == main(["sync", str(part.run_directory)]) == 0
    run = MlflowClient(tracking_uri=uri).get_run(str(part.position(uri).run_id))
    assert run.data.tags["mlflow.parentRunId"] == parent.position(uri).run_id
    # Both are known there already.
    old.rename(new)
    moved = f"sqlite:///{database.rename(new / 'mlflow.db')}"
    assert main(["sync", str(new / "part"), "--uri", moved]) == 0
    assert runs(moved) == {"sweep": ("FINISHED", 5), "part": ("FINISHED", 5)}


@pytest.mark.parametrize("in_time", [True, False])
def test_a_part_waits_for_the_run_that_it_is_a_part_of(
    tmp_path: Path,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    in_time: bool,
) -> None:
    sweep = record(tmp_path / "sweep", uri)
    part = record(tmp_path / "part", uri, parent=str(sweep.run_directory), patience_seconds=9.0)
    sweep.delivery_lock(uri)  # Creates the folder of the position.
    waited: list[float] = []

    def deliver_the_sweep(directory: TrackingDirectory, seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == (1 if in_time else 8):
            sweep.write_position(uri, Position(run_id="0" * 32))

    monkeypatch.setattr("runner.tracking.delivery._wait", deliver_the_sweep)
    assert main(["sync", str(part.run_directory)]) == 0
    # An outage of this length is one, also of the parent run.
    assert ("cannot be opened yet" in capsys.readouterr().out) is not in_time
    run = MlflowClient(tracking_uri=uri).get_run(str(part.position(uri).run_id))
    assert run.data.tags["mlflow.parentRunId"] == "0" * 32


def test_one_process_delivers_and_another_waits(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = record(tmp_path / "run", uri)
    other = directory.delivery_lock(uri)
    other.acquire()
    monkeypatch.setattr("runner.tracking.delivery._wait", lambda *_: other.release())
    assert sync(directory)
    assert runs(uri) == {"run": ("FINISHED", 5)}


def test_one_that_waits_in_vain_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("runner.tracking.delivery._LOCK_SECONDS", 3.0)
    monkeypatch.setattr("runner.tracking.delivery._wait", lambda *_: None)
    directory = record(tmp_path / "run", GONE)
    with directory.delivery_lock(GONE):
        assert not sync(directory)
    assert "Another process delivers" in directory.log.read_text()


def test_what_cannot_be_delivered_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        assert main(["sync", str(path)]) == 2
        assert f"runner: {path} is not a run" in capsys.readouterr().err
    directory = record(tmp_path / "run", GONE)
    assert main(["sync", str(directory.run_directory), "--uri", "sqlit:///x"]) == 2
    assert "knows no scheme" in capsys.readouterr().err


def events(directory: Path) -> list[tuple[str, float, int, float]]:
    return [
        (value.tag, value.simple_value, event.step, event.wall_time)
        for file in sorted(directory.iterdir())
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    ]


def test_event_files_hold_metrics_with_their_step_and_time(tmp_path: Path) -> None:
    run = EventFiles(tmp_path)
    records: list[Record] = [
        Metrics({"loss": 0.5, "accuracy": 0.25}, 1, 1_700_000_000_500),
        Parameters({"rate": "0.1"}),
        Metrics({"loss": math.inf}, 2, 1_700_000_001_000),
    ]
    for delivery in run.deliveries(records):
        run.deliver(delivery)
    run.finish(Status.FINISHED, "")
    assert events(tmp_path) == [
        ("loss", 0.5, 1, 1_700_000_000.5),
        ("accuracy", 0.25, 1, 1_700_000_000.5),
        ("loss", math.inf, 2, 1_700_000_001.0),
    ]
    assert list(run.deliveries([Parameters({"rate": "0.1"})])) == []
    assert (run.refused, run.describe(OSError("full"))) == ((), "OSError: full")
