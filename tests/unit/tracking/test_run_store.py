from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from runner.config.masking import Mask
from runner.config.schema import TrackingConfig
from runner.errors import TrackingError
from runner.system.status import Status
from runner.tracking import RunStore, Tracker, open_store
from runner.tracking.follower_process import FollowerProcess
from runner.tracking.journal import (
    Artifact,
    Dataset,
    End,
    Metrics,
    Parameters,
    Record,
    Tags,
    Text,
    history,
    read_lines,
    segments,
)
from runner.tracking.store_kinds import configured_uris
from runner.tracking.stored_runs import ExportedModel
from runner.tracking.tracking_directory import Position, TrackingDirectory

CONFIG = TrackingConfig(uri="http://me:s3cret@host:5000", close_seconds=0.0)
SETTINGS = {"data": {"password": "hunter22"}}


def make_store(config: TrackingConfig = CONFIG) -> RunStore:
    """A store whose runs are not followed: the process is not started."""
    return RunStore(config, Mask(config.mask, SETTINGS), FollowerProcess())


def recorded(directory: Path) -> list[Record | None]:
    listed = segments(TrackingDirectory(directory).journal)
    return [line.record for segment in listed for line in read_lines(segment.path)]


def test_everything_is_in_the_journal_at_once_without_secrets(tmp_path: Path) -> None:
    tracker = make_store().open(tmp_path, "digits", "one", tags={"command": "x --pw hunter22"})
    before = time.time_ns() // 1_000_000
    tracker.log_parameters({"data.password": "hunter22", "rate": 0.1})
    metrics = {"loss": 0.5}
    tracker.log_metrics(metrics, 1)
    metrics["loss"] = 2.0
    tracker.set_tags({"note": "hunter22!"})
    tracker.log_artifact(tmp_path / "best" / "model", "checkpoints")
    tracker.log_artifact(Path("/elsewhere/x"))
    tracker.log_text("pw=hunter22", "a.txt")
    dataset = Dataset("digits", "abc", "train", "http://a:hunter22@b", {"examples": 3})
    tracker.log_dataset(dataset)
    records = recorded(tmp_path)
    assert isinstance(records[1], Metrics)
    assert before <= records[1].time <= time.time_ns() // 1_000_000
    assert records == [
        Parameters({"data.password": "***", "rate": "0.1"}),
        Metrics({"loss": 0.5}, 1, records[1].time),
        Tags({"note": "***!"}),
        Artifact(Path("best/model"), "checkpoints"),
        Artifact(Path("/elsewhere/x")),
        Text("pw=***", "a.txt"),
        Dataset("digits", "abc", "train", "http://a:***@b", {"examples": 3}),
    ]
    identity = TrackingDirectory(tmp_path).identity()
    assert identity is not None
    assert identity.tags == {"command": "x --pw ***"}
    tracker.close(Status.FINISHED)


def test_a_run_that_is_opened_again_is_the_same_run(tmp_path: Path) -> None:
    make_store().open(tmp_path, "digits", "one", tags={"a": "1"}).close(Status.KILLED)
    first = TrackingDirectory(tmp_path).identity()
    moved = make_store(replace(CONFIG, uri="http://other", tensorboard=True))
    tracker = moved.open(tmp_path, "digits", "two", tags={"a": "2"})
    tracker.log_metrics({"loss": 1.0}, 1)
    tracker.rewind(0)
    tracker.log_metrics({"loss": 1.0}, 1)
    tracker.close(Status.FINISHED)
    second = TrackingDirectory(tmp_path).identity()
    assert first is not None
    assert second == replace(first, stores=("http://other", "tensorboard:"))
    assert [segment.after for segment in segments(TrackingDirectory(tmp_path).journal)] == [
        None,
        None,
        0,
    ]


def test_a_run_starts_once_and_ends_anew_each_time_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [1000]
    monkeypatch.setattr("runner.tracking.run_store.now", lambda: clock[0])

    def open_run(ended: Status | None = None) -> Tracker:
        return make_store().open(tmp_path, "digits", "one", tags={}, ended=ended)

    for status in (Status.KILLED, Status.FINISHED):
        tracker = open_run()
        clock[0] += 500
        assert TrackingDirectory(tmp_path).is_written()
        tracker.close(status)
        tracker.close(Status.FAILED)  # It is closed.
        assert not TrackingDirectory(tmp_path).is_written()
        assert caplog.text.count("runner sync") == 1, "what is not delivered is reported"
        caplog.clear()
        clock[0] += 9000
    for _ in range(2):  # An evaluation that is repeated, because it was killed for example.
        added = open_run(Status.FINISHED)
        added.log_metrics({"test/loss": 1.0}, 1)
        added.close(Status.FINISHED)
    identity = TrackingDirectory(tmp_path).identity()
    assert identity is not None
    assert identity.start_time == 1000
    assert recorded(tmp_path) == [
        End(Status.KILLED, 0, 1500),
        End(Status.FINISHED, 0, 11000),
        Metrics({"test/loss": 1.0}, 1, 20000),
        End(Status.FINISHED, 0, None),
        End(Status.FINISHED, 0, None),
    ]


def test_two_processes_cannot_record_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.tracking.tracking_directory._CLAIM_SECONDS", 0.01)
    tracker = make_store().open(tmp_path, "digits", "one", tags={})
    with pytest.raises(TrackingError, match="another process records from it"):
        make_store().open(tmp_path, "digits", "one", tags={})
    tracker.close(Status.FINISHED)


def test_a_run_is_shown_where_it_is(tmp_path: Path) -> None:
    config = replace(CONFIG, tensorboard=True)
    store = make_store(config)
    directory = TrackingDirectory(tmp_path)
    events = f"event files in {tmp_path}/tensorboard"
    assert store.run_id(tmp_path) is None
    assert store.location(tmp_path) == f"http://me:***@host:5000 (not delivered yet); {events}"
    directory.delivery_lock(str(config.uri))
    directory.write_position(str(config.uri), Position("abc", "7"))
    assert store.run_id(tmp_path) == "abc"
    assert store.location(tmp_path) == (
        f"http://me:***@host:5000/#/experiments/7/runs/abc?workflowType=machine_learning; {events}"
    )
    assert "http://me:***@host:5000" in store.open_command()
    local = make_store(TrackingConfig(uri="sqlite:////x/mlflow.db"))
    directory.delivery_lock("sqlite:////x/mlflow.db")
    directory.write_position("sqlite:////x/mlflow.db", Position("abc", "7"))
    assert local.location(tmp_path) == "sqlite:////x/mlflow.db, run abc"


@pytest.mark.parametrize(
    ("status", "followed"),
    [(None, True), ("RUNNING", True), ("KILLED", False), ("FINISHED", False)],
)
def test_a_killed_run_is_settled_unless_its_status_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str | None, followed: bool
) -> None:
    paths: list[Path] = []
    monkeypatch.setattr(FollowerProcess, "follow", lambda self, path, parent: paths.append(path))
    store = make_store()
    store.deliver_rest(tmp_path / "untracked")
    assert not store.recorded(tmp_path)
    store.open(tmp_path, "digits", "one", tags={})
    assert store.recorded(tmp_path)
    paths.clear()
    assert CONFIG.uri is not None
    files = TrackingDirectory(tmp_path)
    files.store(CONFIG.uri).mkdir()
    files.write_position(CONFIG.uri, Position(status=status))
    store.deliver_rest(tmp_path)
    assert paths == [tmp_path] * followed


def test_the_model_of_a_run_that_mlflow_does_not_have_is_not_kept(tmp_path: Path) -> None:
    store = make_store()
    model = ExportedModel(tmp_path, 1, (), (), {})
    with pytest.raises(TrackingError, match=r"train with that tracking\.uri"):
        store.keep_model(tmp_path, model)
    store.open(tmp_path, "digits", "one", tags={})
    with pytest.raises(TrackingError, match=r"cannot be kept in http:.*\n.*\n.*runner sync"):
        store.keep_model(tmp_path, model)


# The configured store


@pytest.mark.parametrize("tensorboard", [False, True])
@pytest.mark.parametrize("uri", [None, "none", "None", "http://host:1"])
def test_a_uri_or_tensorboard_turns_tracking_on(
    uri: str | None, tensorboard: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = TrackingConfig(uri=uri, tensorboard=tensorboard)
    uris = ("http://host:1",) if uri == "http://host:1" else ()
    assert configured_uris(config) == (*uris, *["tensorboard:"] * tensorboard)
    open_store(config, {})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TrackingError, match="knows no scheme 'sqlit'"):
        open_store(replace(config, uri="sqlit:///mlflow.db"), {})


# Without MLflow


def test_without_stores_a_run_has_its_journal_alone(tmp_path: Path) -> None:
    store = RunStore()
    tracker = store.open(tmp_path, "digits", "digits-1", tags={}, parent="p")
    tracker.log_metrics({"loss": 3.0}, step=10)
    tracker.log_metrics({"loss": 2.0, "count": 3}, step=20)
    tracker.close(Status.KILLED)
    tracker.close(Status.FINISHED)
    tracker = store.open(tmp_path, "digits", "digits-1", tags={})
    tracker.rewind(10)
    tracker.log_metrics({"loss": 1.0}, step=20)
    tracker.close(Status.FINISHED)
    assert "tracking is off" in tracker.location()
    steps = history(TrackingDirectory(tmp_path).journal)
    assert steps == {10: {"loss": 3.0}, 20: {"loss": 1.0}}
    assert not store.recorded(tmp_path)


@pytest.mark.parametrize(
    "config", [TrackingConfig(uri=None), TrackingConfig(uri=None, tensorboard=True)]
)
def test_without_mlflow_nothing_is_found_again(config: TrackingConfig, tmp_path: Path) -> None:
    store = open_store(config, {})
    assert (store.run_id(tmp_path), store.recorded(tmp_path)) == (None, False)
    assert (store.store, store.open_command()) == ("", "")
    assert store.finished("digits", {}) == []
    assert store.keep_model(tmp_path, ExportedModel(tmp_path, 1, (), (), {})) is None
    store.deliver_rest(tmp_path)
    assert list(tmp_path.iterdir()) == []
    for ask in (store.pin, lambda uri: store.download(uri, ".")):
        with pytest.raises(TrackingError, match="runs:/1/x is in MLflow, and tracking is off"):
            ask("runs:/1/x")
