from __future__ import annotations

import logging
from pathlib import Path

import pytest

from runner.errors import TrackingError
from runner.tracking import LoggingStore, RunStatus


def test_a_run_is_logged_from_start_to_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = LoggingStore()
    store.connect()
    tracker = store.start("digits", "digits-1", {"host": "here"}, parent="p")
    tracker.log_parameters({"rate": 0.001, "name": "cnn"})
    tracker.log_metrics({"loss": 0.123456789, "count": 3}, step=20)
    tracker.log_artifact(Path("run/plan.txt"), "plans")
    tracker.log_text("all is well", "report.txt")
    tracker.close(RunStatus.KILLED)
    tracker.close(RunStatus.FINISHED)
    assert caplog.messages == [
        f"run {tracker.run_id}: digits-1 of digits",
        "tags: host=here",
        "parameters: rate=0.001, name=cnn",
        "step 20: loss=0.123457, count=3",
        "artifact: run/plan.txt",
        "report.txt:\nall is well",
        f"run {tracker.run_id}: KILLED",
    ]


def test_the_level_can_be_chosen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    tracker = LoggingStore(logging.DEBUG).start("digits", "one", {})
    tracker.log_metrics({"loss": 1.0}, step=1)
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


def test_every_run_has_an_id_of_its_own() -> None:
    store = LoggingStore()
    ids = {store.start("digits", "one", {}).run_id for _ in range(10)}
    assert len(ids) == 10


def test_a_resumed_run_keeps_its_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert LoggingStore().resume("abc").run_id == "abc"
    assert caplog.messages == ["run abc: resumed"]


def test_nothing_is_found_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = LoggingStore()
    run_id = store.start("digits", "one", {}).run_id
    store.mark(run_id, RunStatus.FINISHED)
    assert caplog.messages[-1] == f"run {run_id}: FINISHED"
    assert store.finished("digits", {}) == []
    assert store.open_command() == ""
    assert "tracking is off" in store.location(run_id)


def test_it_has_no_artifacts() -> None:
    store = LoggingStore()
    assert store.store == ""
    with pytest.raises(TrackingError, match="runs:/1/x is in MLflow, and tracking is off"):
        store.download("runs:/1/x", ".")
