from __future__ import annotations

import logging
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from runner.system.status import Status
from runner.tracking.destination import Destination
from runner.tracking.follower import Connect, Follower
from runner.tracking.journal import (
    RECORDED_AGAIN_TAG,
    Artifact,
    End,
    Journal,
    Metrics,
    Record,
    Tags,
    Text,
    encode_line,
    history,
    segments,
)
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.tracking_directory import RunIdentity, TrackingDirectory
from tests.support.following import URI, Killed, Memory, edit_identity, follow, loss, record, twin


def test_everything_arrives_and_then_the_status(directory: TrackingDirectory) -> None:
    store = Memory()
    record(
        directory,
        *(loss(step) for step in range(1, 3001)),
        Tags({"host": "here"}),
        Text("well", "report.txt"),
        Artifact(Path("plan.txt"), "plans"),
        Artifact(Path("/elsewhere/x"), ""),
        End(Status.FAILED),
    )
    assert follow(directory, store)
    assert store.history("loss") == twin(3000)
    assert store.tags == {"host": "here"}
    assert store.others == [
        Text("well", "report.txt"),
        Artifact(directory.run_directory / "plan.txt", "plans"),
        Artifact(Path("/elsewhere/x"), ""),
    ]
    assert store.statuses == [(Status.FAILED, "")]
    position = directory.position(URI)
    assert (position.run_id, position.status) == ("r1", "FAILED")
    assert position.offset == segments(directory.journal)[0].path.stat().st_size


def test_nothing_is_delivered_twice_by_the_next_follower(directory: TrackingDirectory) -> None:
    record(directory, loss(1), End(Status.FINISHED))
    assert follow(directory, Memory())
    other = Memory()
    assert follow(directory, other)
    record(directory, Metrics({"test/loss": 1.0}, 1, 0), End(Status.FINISHED))
    assert follow(directory, other)
    assert (len(other.points), other.statuses) == (1, [])


def test_a_killed_run_ended_when_it_last_recorded_a_metric(directory: TrackingDirectory) -> None:
    store = Memory()
    for time in (1000, 2000):
        directory.claim()
        record(directory, loss(1, time=time - 500), loss(2, time=time), Tags({"host": "here"}))
        assert follow(directory, store, lambda seconds: directory.release())
    assert [status for status, _ in store.statuses] == [Status.RUNNING, Status.KILLED] * 2
    assert store.end_times == [None, 1000, None, 2000]


def test_the_end_is_the_runs_own_and_that_of_the_training(directory: TrackingDirectory) -> None:
    store = Memory()
    record(directory, loss(1, time=1000), End(Status.KILLED, 0, 2000))
    assert follow(directory, store)
    record(directory, loss(2, time=5000), End(Status.FINISHED, 0, 6000))
    edit_identity(directory, ended="FINISHED")
    record(directory, Metrics({"test/loss": 1.0}, 1, 9000), End(Status.FINISHED))
    assert follow(directory, store)
    # Killed without a word, too.
    directory.claim()
    record(directory, Metrics({"test/gain": 1.0}, 1, 9500))
    assert follow(directory, store, lambda seconds: directory.release())
    assert store.statuses == [(Status.KILLED, ""), (Status.FINISHED, "")]
    assert store.end_times == [2000, 6000]
    assert store.history("test/loss") == store.history("test/gain") == [(1, 1.0)]


def test_a_store_that_is_away_is_tried_again_after_growing_delays(
    directory: TrackingDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    store = Memory()
    directory.claim()
    record(directory, loss(1))
    delays: list[float] = []

    def away() -> None:
        raise ConnectionError("away")

    def wait(seconds: float) -> None:
        delays.append(seconds)
        if len(delays) == 10:
            store.before = lambda: None
            directory.release()

    store.before = away
    with caplog.at_level(logging.INFO):
        assert follow(directory, store, wait)
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    assert store.history("loss") == twin(1)
    warnings = [
        message.getMessage() for message in caplog.records if message.levelno == logging.WARNING
    ]
    assert len(warnings) == 1
    assert warnings[0].endswith("delivered when the store is back: described away")
    assert "Tracking has resumed." in caplog.text


def test_a_store_that_stays_away_is_given_up_some_time_after_the_run(
    directory: TrackingDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    edit_identity(directory, patience_seconds=100.0)
    directory.claim()
    record(directory, loss(1), End(Status.FINISHED))
    clock = [0.0]

    def wait(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] > 1000.0:
            directory.release()

    def away(identity: RunIdentity) -> Destination:
        raise ConnectionError("away")

    assert not Follower(directory, URI, away, wait=wait, now=lambda: clock[0]).run()
    assert 1100.0 <= clock[0] <= 1200.0
    assert "ConnectionError('away')" in caplog.text
    store = Memory()
    assert follow(directory, store)
    assert store.history("loss") == twin(1)


def test_a_run_that_is_recorded_elsewhere_now_is_left(directory: TrackingDirectory) -> None:
    store = Memory()
    record(directory, loss(1))
    edit_identity(directory, stores=("other:",))
    assert not follow(directory, store)
    assert store.points == set()


def test_what_is_missing_is_reported_with_the_status(
    directory: TrackingDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    store = Memory()
    store.refused = [Text("x", "refused.txt")]
    record(directory, loss(1), loss(2), End(Status.FINISHED, 2))
    (segment,) = segments(directory.journal)
    content = bytearray(segment.path.read_bytes())
    content[15] ^= 1
    segment.path.write_bytes(content)
    assert follow(directory, store)
    assert store.history("loss") == twin(2)[1:]
    assert store.statuses == [
        (Status.FINISHED, "artifact refused.txt, 3 records that did not reach the journal")
    ]
    assert "is damaged" in caplog.text


# Runs that resume: each step is delivered once.


def test_steps_recorded_again_are_delivered_once_with_their_first_time(
    directory: TrackingDirectory,
) -> None:
    store = Memory()
    record(directory, *(loss(step, time=1) for step in range(1, 9)))
    assert follow(directory, store)
    record(directory, *(loss(step, time=2) for step in range(5, 13)), after=4)
    assert follow(directory, store)
    # Also of the step itself, such as the evaluation at the end.
    for time in (3, 4):
        record(directory, loss(12, time), Metrics({"other": 1.0}, 12, time), after=12)
    assert follow(directory, store)
    assert sorted((step, time) for _, _, time, step in store.points) == [
        *((step, 1) for step in range(1, 9)),
        *((step, 2) for step in range(9, 13)),
        (12, 3),
    ]
    assert (store.history("loss"), store.history("other")) == (twin(12), [(12, 1.0)])
    assert RECORDED_AGAIN_TAG not in store.tags


@pytest.mark.parametrize("followed", [True, False])
def test_what_the_store_holds_does_not_depend_on_when_it_is_delivered(
    directory: TrackingDirectory, followed: bool
) -> None:
    store = Memory()
    image = Artifact(Path("samples.png"), "images", step=6, time=0)
    lives: list[tuple[int | None, list[Record]]] = [
        (None, [*(loss(step, time=1) for step in range(1, 9)), image, Tags({"host": "1"})]),
        (4, [loss(5, time=2), loss(6, time=2, value=-6.0), image]),
        (4, [loss(5, time=3), loss(6, time=3, value=-6.0), image, loss(9, time=3)]),
    ]
    for after, records in lives:
        record(directory, *records, after=after)
        assert not followed or follow(directory, store)
    assert follow(directory, store)
    assert store.history("loss") == [*twin(5), (6, -6.0), (6, 2.0), *twin(9)[6:]]
    assert {time for _, value, time, step in store.points if step == 5} == {1}
    assert store.tags == {"host": "1", RECORDED_AGAIN_TAG: "loss"}
    assert store.others == [replace(image, path=directory.run_directory / image.path)]
    # The journal's history is that of the last life: it has not come to the steps 7 and 8.
    losses = [(step, values["loss"]) for step, values in history(directory.journal).items()]
    assert losses == [*twin(5), (6, -6.0), (9, 3.0)]


def test_a_store_that_has_lost_the_run_is_given_all_of_it_anew(
    directory: TrackingDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    record(directory, *(loss(step) for step in range(1, 9)))
    assert follow(directory, Memory())
    other = Memory()
    other.run_id = "r2"
    record(directory, *(loss(step) for step in range(5, 13)), End(Status.FINISHED), after=4)
    assert follow(directory, other)
    assert other.history("loss") == twin(12)
    assert other.statuses == [(Status.FINISHED, "")]
    assert directory.position(URI).run_id == "r2"
    assert "memory has no run r1 any more" in caplog.text


def test_a_value_that_differs_is_delivered_too_and_named(directory: TrackingDirectory) -> None:
    store = Memory()
    record(directory, *(loss(step) for step in range(1, 4)), Metrics({"n": math.nan}, 2, 0))
    assert follow(directory, store)
    again = [loss(2, 5), loss(3, 5, value=9.0), Metrics({"n": math.nan}, 2, 5)]
    record(directory, *again, after=1)
    assert follow(directory, store)
    assert store.history("loss") == [*twin(3), (3, 9.0)]
    assert len(store.history("n")) == 1
    assert store.tags == {RECORDED_AGAIN_TAG: "loss"}


class Training:
    """A run whose process, and whose follower's, die at random; checkpoints every 10 steps."""

    def __init__(self, directory: TrackingDirectory, seed: int, steps: int) -> None:
        self.directory, self.random, self.steps = directory, random.Random(seed), steps
        self.journal: Journal | None = None
        self.step, self.saved, self.time = 0, 0, 0

    def resume(self, seconds: float = 0.0) -> None:
        if self.journal is None:
            self.directory.claim()
            self.journal = Journal(self.directory.journal)
            self.journal.append(Tags({f"life{self.time}": "1"}))
            self.step = self.saved
            self.journal.rewind(self.step)
        for _ in range(self.random.randrange(40)):
            if self.step == self.steps:
                self.journal.append(End(Status.FINISHED))
                self._die(self.journal)
                return
            self.step += 1
            self.journal.append(self._metrics(self.step))
            if self.step % 10 == 0:
                self.saved = self.step
        match self.random.randrange(6):
            case 0:  # Killed at any byte of a write.
                self._die(self.journal)
                line = encode_line(self._metrics(self.step + 1))
                with segments(self.directory.journal)[-1].path.open("ab") as file:
                    file.write(line[: self.random.randint(0, len(line))])
            case 1:  # A session lost and recovered in the same process.
                self.step = self.saved
                self.journal.rewind(self.step)

    def _metrics(self, step: int) -> Metrics:
        self.time += 1
        values = {"loss": step / 3}
        if step % 5 == 0:
            values["accuracy"] = 1 / step
        return Metrics(values, step, self.time)

    def _die(self, journal: Journal) -> None:
        journal.close()
        self.directory.release()
        self.journal = None

    @property
    def done(self) -> bool:
        return self.step == self.steps and self.journal is None

    def strike(self) -> None:
        """Kills the follower, or takes the store away, now and then."""
        match self.random.randrange(12):
            case 0:
                raise Killed
            case 1:
                raise ConnectionError("away")

    def live(self, connect: Connect) -> None:
        """Trains to the end and delivers, a new follower for each that dies."""
        while True:
            wait = (lambda _: None) if self.done else self.resume
            try:
                delivered = Follower(self.directory, URI, connect, wait=wait).run()
            except Killed:
                continue
            if delivered and self.done:
                return
            if not self.done:
                self.resume()


@pytest.mark.parametrize("seed", range(15))
def test_however_often_a_process_dies_each_step_is_there_once(
    directory: TrackingDirectory, seed: int
) -> None:
    store, training = Memory(), Training(directory, seed, 200)
    store.before = store.after = training.strike
    training.live(lambda _: store)
    assert store.history("loss") == twin(200)
    assert store.history("accuracy") == [(step, 1 / step) for step in range(5, 201, 5)]
    assert RECORDED_AGAIN_TAG not in store.tags
    assert store.statuses[-1] == (Status.FINISHED, "")
    assert list(history(directory.journal)) == list(range(1, 201))


@pytest.mark.parametrize("seed", range(3))
def test_mlflow_has_each_step_once_too(
    directory: TrackingDirectory, store: MlflowStore, client: MlflowClient, seed: int
) -> None:
    training = Training(directory, seed, 100)

    def connect(identity: RunIdentity) -> Destination:
        run = store.find_or_create(identity, directory.position(URI).run_id, None)
        deliver = run.deliver

        def struck(*arguments: Any) -> None:
            training.strike()
            deliver(*arguments)
            training.strike()

        setattr(run, "deliver", struck)  # noqa: B010 - mypy refuses to assign a method
        return run

    training.live(connect)
    run_id = directory.position(URI).run_id
    assert run_id is not None
    points = [(point.step, point.value) for point in client.get_metric_history(run_id, "loss")]
    assert sorted(points) == twin(100)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert RECORDED_AGAIN_TAG not in run.data.tags
