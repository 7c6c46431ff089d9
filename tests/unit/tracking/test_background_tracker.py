from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.tracking.background_tracker import BackgroundTracker, Destination
from runner.tracking.encoding import Encoder
from runner.tracking.records import Artifact, Batch, Delivery, Text
from runner.tracking.tracker import RunStatus


class Memory(Destination):
    """Keeps what is delivered, and fails or hangs as it is told to."""

    def __init__(self, failures: int = 0, refuses: bool = False, hangs: bool = False) -> None:
        self.failures = failures
        self.refuses = refuses
        self.release = threading.Event()
        if not hangs:
            self.release.set()
        self.delivered: list[Delivery] = []
        self.finished: list[tuple[RunStatus, str]] = []

    @property
    def run_id(self) -> str:
        return "r1"

    @property
    def name(self) -> str:
        return "memory"

    @property
    def refused(self) -> Sequence[Delivery]:
        return self.delivered if self.refuses else ()

    def deliver(self, delivery: Delivery, failures: int = 0) -> None:
        self.release.wait(30.0)
        if failures < self.failures:
            raise ConnectionError(f"failure {failures}")
        self.delivered.append(delivery)

    def finish(self, status: RunStatus, missing: str) -> None:
        if self.failures > 100:
            raise ConnectionError("still away")
        self.finished.append((status, missing))

    def describe(self, error: Exception) -> str:
        return f"described {error}"


def track(destination: Memory, drain_seconds: float = 30.0) -> BackgroundTracker:
    tracker = BackgroundTracker(
        destination, Encoder({}, {}), interval=0.001, drain_seconds=drain_seconds
    )
    tracker.start()
    return tracker


def test_everything_arrives_before_the_status(caplog: pytest.LogCaptureFixture) -> None:
    destination = Memory()
    tracker = track(destination)
    tracker.log_parameters({"rate": 0.1})
    for step in range(100):
        tracker.log_metrics({"loss": float(step), "accuracy": 0.5}, step)
    tracker.set_tags({"host": "here"})
    tracker.log_artifact(Path("run/plan.txt"), "plans")
    tracker.log_text("well", "report.txt")
    tracker.close(RunStatus.FINISHED)
    batches = [item for item in destination.delivered if isinstance(item, Batch)]
    points = [point for batch in batches for point in batch.metrics]
    assert [point.step for point in points if point.key == "loss"] == list(range(100))
    assert [point.value for point in points if point.key == "accuracy"] == [0.5] * 100
    assert [entry for batch in batches for entry in batch.parameters] == [("rate", "0.1")]
    assert [entry for batch in batches for entry in batch.tags] == [("host", "here")]
    assert destination.delivered[-2:] == [
        Artifact(Path("run/plan.txt"), "plans"),
        Text("well", "report.txt"),
    ]
    assert destination.finished == [(RunStatus.FINISHED, "")]
    assert tracker.run_id == "r1"
    assert caplog.text == ""


def test_metrics_carry_the_time_of_the_call_and_not_later_changes() -> None:
    destination = Memory()
    tracker = track(destination)
    metrics = {"loss": 1.0}
    before = time.time_ns() // 1_000_000
    tracker.log_metrics(metrics, 1)
    metrics["loss"] = 2.0
    tracker.close(RunStatus.FINISHED)
    (batch,) = destination.delivered
    assert isinstance(batch, Batch)
    (point,) = batch.metrics
    assert point.value == 1.0
    assert before <= point.time <= time.time_ns() // 1_000_000


def test_nothing_is_lost_or_doubled_by_a_short_outage() -> None:
    destination = Memory(failures=1)
    tracker = track(destination)
    tracker.log_metrics({"loss": 1.0}, 1)
    tracker.close(RunStatus.FINISHED)
    assert len(destination.delivered) == 1
    assert destination.finished == [(RunStatus.FINISHED, "")]


def test_a_store_that_is_away_costs_bounded_time_and_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.tracking.background_tracker._STATUS_SECONDS", 0.05)
    tracker = track(Memory(failures=1_000_000), drain_seconds=0.05)
    began = time.monotonic()
    tracker.log_metrics({"loss": 1.0, "accuracy": 0.5}, 1)
    tracker.log_artifact(Path("run/plan.txt"))
    tracker.close(RunStatus.KILLED)
    assert time.monotonic() - began < 10.0
    warnings = [item.getMessage() for item in caplog.records if item.levelno == logging.WARNING]
    assert (
        "Run r1: not delivered to memory: 2 metric values, artifact plan.txt: described failure"
        in "\n".join(warnings)
    )
    assert warnings[-1] == (
        "Run r1: its status KILLED could not be recorded in memory: described still away"
    )


def test_a_store_that_hangs_costs_bounded_time_and_the_status_is_still_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    destination = Memory(hangs=True)
    tracker = track(destination, drain_seconds=0.05)
    tracker.log_text("well", "report.txt")
    tracker.close(RunStatus.FINISHED)
    destination.release.set()
    assert destination.finished == [(RunStatus.FINISHED, "artifact report.txt")]
    assert "not delivered to memory: artifact report.txt" in caplog.text


def test_what_the_store_refused_is_reported_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    destination = Memory(refuses=True)
    tracker = track(destination)
    tracker.log_metrics({"loss": 1.0}, 1)
    tracker.close(RunStatus.FINISHED)
    assert destination.finished == [(RunStatus.FINISHED, "1 metric value")]
    assert "Run r1: not delivered to memory: 1 metric value" in caplog.text


def test_what_found_the_queue_full_is_reported_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    destination = Memory()
    tracker = BackgroundTracker(destination, Encoder({}, {}), capacity=2)
    for step in range(5):
        tracker.log_metrics({"loss": 1.0}, step)
    tracker.start()
    tracker.close(RunStatus.FINISHED)
    assert destination.finished == [(RunStatus.FINISHED, "3 records that found the queue full")]
    assert "drops records: 2 records wait" in caplog.text


def test_only_the_first_close_counts() -> None:
    destination = Memory()
    tracker = track(destination)
    tracker.close(RunStatus.KILLED)
    tracker.close(RunStatus.FINISHED)
    assert destination.finished == [(RunStatus.KILLED, "")]
