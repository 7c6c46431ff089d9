from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from runner.tracking.background_writer import BackgroundWriter

Writer = BackgroundWriter[int, int]


def writer_to(deliver: Callable[[int, int], None], capacity: int = 1000) -> Writer:
    return BackgroundWriter(
        list,
        deliver,
        name="the store",
        interval=0.001,
        retry_delays=(0.001, 0.002),
        capacity=capacity,
    )


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_everything_is_delivered_in_order_by_close() -> None:
    delivered: list[int] = []
    writer = writer_to(lambda record, failures: delivered.append(record), capacity=5000)
    for record in range(2500):
        writer.put(record)
    writer.start()
    for record in range(2500, 5000):
        writer.put(record)
    assert not writer.close(30.0)
    assert delivered == list(range(5000))


def test_records_that_gathered_are_prepared_together() -> None:
    sizes: list[int] = []

    def prepare(records: Sequence[int]) -> Sequence[int]:
        sizes.append(len(records))
        return records

    writer: Writer = BackgroundWriter(prepare, lambda record, failures: None, name="the store")
    for record in range(1500):
        writer.put(record)
    writer.start()
    assert not writer.close(30.0)
    assert sizes == [1000, 500]


def test_put_does_not_wait_for_a_delivery_that_hangs() -> None:
    entered, release = threading.Event(), threading.Event()

    def hang(record: int, failures: int) -> None:
        entered.set()
        release.wait(30.0)

    writer = writer_to(hang)
    writer.put(0)
    writer.start()
    assert entered.wait(30.0)
    for record in range(1, 100):
        writer.put(record)
    remainder = writer.close(0.01)
    release.set()
    assert remainder.deliveries == (0,)
    assert remainder.records == tuple(range(1, 100))
    assert remainder.error is None


def test_a_failed_delivery_is_tried_again_until_it_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    attempts: list[tuple[int, int]] = []
    succeeded = threading.Event()

    def fail_three_times(record: int, failures: int) -> None:
        attempts.append((record, failures))
        if failures < 3:
            raise ConnectionError("no answer")
        succeeded.set()

    writer = writer_to(fail_three_times)
    writer.put(1)
    writer.start()
    assert succeeded.wait(30.0)
    assert not writer.close(30.0)
    assert attempts == [(1, 0), (1, 1), (1, 2), (1, 3)]
    (warning,) = warnings_in(caplog)
    assert "Tracking to the store is interrupted" in warning
    assert "no answer" in warning
    assert "Tracking to the store goes on" in caplog.text


def test_close_gives_up_and_says_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    failed = threading.Event()

    def fail(record: int, failures: int) -> None:
        if failures:
            failed.set()
        raise ConnectionError("no answer")

    writer = writer_to(fail)
    writer.put(1)
    writer.put(2)
    writer.start()
    assert failed.wait(30.0)
    began = time.monotonic()
    remainder = writer.close(0.05)
    assert time.monotonic() - began < 5.0
    assert remainder
    assert (*remainder.deliveries, *remainder.records) == (1, 2)
    assert str(remainder.error) == "no answer"
    assert len(warnings_in(caplog)) == 1


def test_failures_while_closing_are_left_to_the_caller_to_report(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entered, release = threading.Event(), threading.Event()

    def fail(record: int, failures: int) -> None:
        entered.set()
        release.wait(30.0)
        raise ConnectionError("no answer")

    writer = writer_to(fail)
    writer.put(1)
    writer.start()
    assert entered.wait(30.0)
    # By the time the delivery fails, close() has been called.
    timer = threading.Timer(0.05, release.set)
    timer.start()
    assert writer.close(0.2).deliveries == (1,)
    timer.join()
    assert warnings_in(caplog) == []


def test_close_wakes_a_writer_that_waits_to_try_again() -> None:
    failed = threading.Event()

    def fail_once(record: int, failures: int) -> None:
        failed.set()
        if not failures:
            raise ConnectionError("no answer")

    writer: Writer = BackgroundWriter(list, fail_once, name="the store", retry_delays=(3600.0,))
    writer.put(1)
    writer.start()
    assert failed.wait(30.0)
    assert not writer.close(30.0)


def test_a_full_queue_drops_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    delivered: list[int] = []
    writer = writer_to(lambda record, failures: delivered.append(record), capacity=3)
    for record in range(10):
        writer.put(record)
    writer.start()
    assert writer.close(30.0).dropped == 7
    assert delivered == [0, 1, 2]
    assert warnings_in(caplog) == ["Tracking to the store drops records: 3 records wait."]


def test_what_comes_after_close_is_dropped_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = writer_to(lambda record, failures: None)
    writer.start()
    assert not writer.close(30.0)
    writer.put(1)
    assert warnings_in(caplog) == ["Tracking to the store drops records: closed."]


def test_records_that_cannot_be_prepared_do_not_hold_back_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    delivered: list[int] = []

    def prepare(records: Sequence[int]) -> Sequence[int]:
        if 0 in records:
            raise ValueError("no such thing")
        return records

    writer: Writer = BackgroundWriter(
        prepare, lambda record, failures: delivered.append(record), name="the store"
    )
    for record in range(1500):
        writer.put(record)
    writer.start()
    remainder = writer.close(30.0)
    assert remainder.dropped == 1000
    assert str(remainder.error) == "no such thing"
    assert delivered == list(range(1000, 1500))
    assert "drops 1000 records that cannot be prepared" in caplog.text


def test_records_of_many_threads_are_delivered_once_each() -> None:
    delivered: list[int] = []
    writer = writer_to(lambda record, failures: delivered.append(record), capacity=10_000)
    writer.start()

    def put_all(first: int) -> None:
        for record in range(first, first + 1000):
            writer.put(record)

    threads = [threading.Thread(target=put_all, args=(1000 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not writer.close(30.0)
    assert sorted(delivered) == list(range(4000))


def test_errors_are_described_as_asked(caplog: pytest.LogCaptureFixture) -> None:
    succeeded = threading.Event()

    def fail_once(record: int, failures: int) -> None:
        if not failures:
            raise ConnectionError("password")
        succeeded.set()

    writer: Writer = BackgroundWriter(
        list, fail_once, name="the store", retry_delays=(0.0,), describe=lambda error: "masked"
    )
    writer.put(1)
    writer.start()
    assert succeeded.wait(30.0)
    assert not writer.close(30.0)
    assert "masked" in caplog.text
    assert "password" not in caplog.text
