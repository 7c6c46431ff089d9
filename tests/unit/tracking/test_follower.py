from __future__ import annotations

import logging
import math
import random
from pathlib import Path

import pytest

from runner.system.status import Status
from runner.tracking.destination import Destination
from runner.tracking.follower import RECORDED_AGAIN_TAG, Follower
from runner.tracking.journal import Artifact, End, Journal, Metrics, Tags, Text, segments
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


def test_steps_not_delivered_yet_are_void_once_they_are_recorded_again(
    directory: TrackingDirectory,
) -> None:
    store = Memory()
    record(directory, *(loss(step) for step in range(1, 9)), Tags({"kept": "1"}))
    record(directory, *(loss(step, value=-float(step)) for step in range(5, 8)), after=4)
    record(directory, *(loss(step, value=-float(step)) for step in range(7, 10)), after=6)
    assert follow(directory, store)
    assert store.history("loss") == [*twin(4), *((step, -float(step)) for step in range(5, 10))]
    assert store.tags == {"kept": "1"}


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
            self.time += 1
            values = {"loss": self.step / 3}
            if self.step % 5 == 0:
                values["accuracy"] = 1 / self.step
            self.journal.append(Metrics(values, self.step, self.time))
            if self.step % 10 == 0:
                self.saved = self.step
        match self.random.randrange(6):
            case 0:
                self._die(self.journal)
            case 1:  # A session lost and recovered in the same process.
                self.step = self.saved
                self.journal.rewind(self.step)

    def _die(self, journal: Journal) -> None:
        journal.close()
        self.directory.release()
        self.journal = None

    @property
    def done(self) -> bool:
        return self.step == self.steps and self.journal is None

    def live(self, store: Memory) -> None:
        """Trains to the end and delivers, a new follower for each that dies."""

        def strike() -> None:
            match self.random.randrange(12):
                case 0:
                    raise Killed
                case 1:
                    raise ConnectionError("away")

        store.before = store.after = strike
        while True:
            try:
                delivered = follow(
                    self.directory, store, (lambda _: None) if self.done else self.resume
                )
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
    store = Memory()
    Training(directory, seed, 200).live(store)
    assert store.history("loss") == twin(200)
    assert store.history("accuracy") == [(step, 1 / step) for step in range(5, 201, 5)]
    assert RECORDED_AGAIN_TAG not in store.tags
    assert store.statuses[-1] == (Status.FINISHED, "")
