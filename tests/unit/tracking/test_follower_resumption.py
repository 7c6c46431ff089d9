"""Runs that resume after any process has died: each step is delivered once."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from mlflow import MlflowClient

from runner.system.status import Status
from runner.tracking.encoding import Delivery
from runner.tracking.follower import RECORDED_AGAIN_TAG, Destination, Follower
from runner.tracking.journal import End, Journal, Metrics, Tags
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.tracking_directory import TrackingDirectory
from tests.tiny.following import (
    URI,
    Killed,
    Memory,
    follow,
    loss,
    record,
    twin,
)


def test_steps_recorded_again_are_delivered_once_with_their_first_time(
    directory: TrackingDirectory,
) -> None:
    store = Memory()
    record(directory, *(loss(step, time=1) for step in range(1, 9)))
    assert follow(directory, store)
    record(directory, *(loss(step, time=2) for step in range(5, 13)), after=4)
    assert follow(directory, store)
    assert store.history("loss") == twin(12)
    assert {(time, step) for _, _, time, step in store.points} == {
        *((1, step) for step in range(1, 9)),
        *((2, step) for step in range(9, 13)),
    }
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


def test_what_is_recorded_again_of_the_step_itself_is_delivered_once(
    directory: TrackingDirectory,
) -> None:
    # Such as the evaluation at the end, when the process dies before it has closed the run.
    store = Memory()
    record(directory, *(loss(step, time=1) for step in (1, 2, 3)))
    record(directory, loss(3, time=2), Metrics({"other": 1.0}, 3, 2), after=3)
    record(directory, loss(3, time=3), Metrics({"other": 1.0}, 3, 3), after=3)
    assert follow(directory, store)
    assert store.history("loss") == twin(3)
    assert store.history("other") == [(3, 1.0)]
    assert len(store.points) == 4


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


def test_what_may_have_been_sent_is_not_void(directory: TrackingDirectory) -> None:
    store = Memory()
    record(directory, *(loss(step, time=1) for step in range(1, 9)))

    def die() -> None:
        raise Killed

    store.after = die  # The store has them, and it is not known.
    with pytest.raises(Killed):
        follow(directory, store)
    store.after = lambda: None
    record(directory, *(loss(step, time=2) for step in range(5, 13)), after=4)
    assert follow(directory, store)
    assert store.history("loss") == twin(12)


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

    def live(self, connect: Callable[[Callable[[], None]], Destination]) -> None:
        """Trains to the end and delivers, a new follower for each that dies."""

        def strike() -> None:
            match self.random.randrange(12):
                case 0:
                    raise Killed
                case 1:
                    raise ConnectionError("away")

        while True:
            wait = self.resume if not self.done else (lambda seconds: None)
            try:
                delivered = Follower(
                    self.directory, URI, lambda *_: connect(strike), wait=wait
                ).run()
            except Killed:
                continue
            if delivered and self.done:
                return
            if not self.done:
                self.resume()


ACCURACY = [(step, 1 / step) for step in range(5, 201, 5)]


@pytest.mark.parametrize("seed", range(15))
def test_however_often_a_process_dies_each_step_is_there_once(
    directory: TrackingDirectory, seed: int
) -> None:
    store = Memory()

    def connect(strike: Callable[[], None]) -> Destination:
        store.before = store.after = strike
        return store

    Training(directory, seed, 200).live(connect)
    assert store.history("loss") == twin(200)
    assert store.history("accuracy") == ACCURACY
    assert RECORDED_AGAIN_TAG not in store.tags
    assert store.statuses[-1] == (Status.FINISHED, "")


def test_mlflow_holds_each_step_once_too(
    directory: TrackingDirectory, store: MlflowStore, client: MlflowClient
) -> None:
    def connect(strike: Callable[[], None]) -> Destination:
        opening = directory.opening()
        assert opening is not None
        run = store.open_run(opening, directory.position(URI).run_id, None)
        deliver = run.deliver

        def struck(delivery: Delivery, failures: int = 0) -> None:
            strike()
            deliver(delivery, failures)
            strike()

        run.deliver = struck  # type: ignore[method-assign]
        return run

    Training(directory, 0, 200).live(connect)
    (run,) = client.search_runs(["1"])
    for key, expected in (("loss", twin(200)), ("accuracy", ACCURACY)):
        history = client.get_metric_history(run.info.run_id, key)
        assert sorted((each.step, each.value) for each in history) == expected
    assert run.info.status == "FINISHED"
    assert RECORDED_AGAIN_TAG not in run.data.tags
