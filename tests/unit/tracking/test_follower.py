from __future__ import annotations

import logging
from pathlib import Path

import pytest

from runner.system.status import Status
from runner.tracking.follower import Destination, Follower
from runner.tracking.journal import Artifact, End, Metrics, Tags, Text, segments
from runner.tracking.tracking_directory import Opening, Position, TrackingDirectory
from tests.tiny.following import (
    URI,
    Killed,
    Memory,
    edit_opening,
    follow,
    loss,
    record,
    twin,
)


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
    edit_opening(directory, ended="FINISHED")
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
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].endswith("delivered when the store is back: described away")
    assert "Tracking has resumed." in caplog.text


def test_a_store_that_stays_away_is_given_up_some_time_after_the_run(
    directory: TrackingDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    edit_opening(directory, patience_seconds=100.0)
    directory.claim()
    record(directory, loss(1), End(Status.FINISHED))
    clock = [0.0]

    def wait(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] > 1000.0:
            directory.release()

    def away(opening: Opening, position: Position) -> Destination:
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
    edit_opening(directory, stores=("other:",))
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
        (
            Status.FINISHED,
            "artifact refused.txt, 3 records that did not reach the journal",
        )
    ]
    assert "is damaged" in caplog.text


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("died_in", range(4))
def test_a_follower_killed_around_a_request_loses_and_doubles_nothing(
    directory: TrackingDirectory, moment: str, died_in: int
) -> None:
    store = Memory()
    record(directory, *(loss(step) for step in range(1, 2501)), End(Status.FINISHED, 0, 9000))
    requests = iter(range(100))

    def die() -> None:
        if next(requests) == died_in:
            raise Killed

    setattr(store, moment, die)
    with pytest.raises(Killed):
        follow(directory, store)
    assert follow(directory, store)
    assert store.history("loss") == twin(2500)
    assert (store.statuses[-1], store.end_times[-1]) == ((Status.FINISHED, ""), 9000)
