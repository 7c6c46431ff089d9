"""Schedules are read as they are spelled, and due when they should be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config.epochs import Epochs
from runner.config.schedule import Schedule, Trigger, as_schedule, as_seconds


@pytest.mark.parametrize(
    ("when", "schedule"),
    [
        (50, Schedule(steps=50)),
        ("1 step", Schedule(steps=1)),
        ("1.5 minutes", Schedule(seconds=90.0)),
        ("30 seconds, end", Schedule(seconds=30.0, at_end=True)),
        ("at 3, at 50, 1 hour", Schedule(seconds=3600.0, at_steps=(3, 50))),
        ("50 steps, 2 epochs", Schedule(steps=50, epochs=2)),
        ("at epoch 3, at epoch 5", Schedule(at_epochs=(3, 5))),
        (Schedule(at_end=True), Schedule(at_end=True)),
    ],
)
def test_a_schedule_is_read_as_it_is_spelt(when: Any, schedule: Schedule) -> None:
    assert as_schedule(when) == schedule


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("1.5 steps", "'1.5 steps' is not a whole number of steps"),
        ("1.5 epochs", "'1.5 epochs' is not a whole number of epochs"),
        ("at noon", "'at noon' is not a schedule; write .*, `2 hours` or `at 100`, or `end`"),
        (True, "True is not a schedule"),
        (0, "every 0 steps; it must be more than 0"),
        ({"steps": 3}, "{'steps': 3} is not a schedule"),
    ],
)
def test_what_is_not_a_schedule_is_refused(when: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_schedule(when)


@pytest.mark.parametrize(
    ("duration", "message"),
    [
        ("3 steps", "'3 steps' is not a duration"),
        ("soon", "'soon' is not a duration"),
        (0, "a duration of 0 seconds; it must be more than 0"),
    ],
)
def test_what_is_not_a_duration_is_refused(duration: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_seconds(duration)
    assert (as_seconds(5), as_seconds("90 minutes")) == (5.0, 5400.0)


STEPS = st.integers(1, 10**6)


@given(
    steps=STEPS, minutes=st.integers(1, 10**4), at=st.lists(STEPS, max_size=3), end=st.booleans()
)
def test_any_schedule_is_read_back_as_it_is_spelled(
    steps: int, minutes: int, at: list[int], end: bool
) -> None:
    parts = [f"{steps} steps", f"{minutes} minutes", *(f"at {each}" for each in at)]
    expected = Schedule(steps, 60.0 * minutes, tuple(at), end)
    assert as_schedule(", ".join([*parts, *["end"] * end])) == expected


@given(
    every=st.integers(1, 50),
    begin=st.integers(0, 99),
    jumps=st.lists(st.integers(1, 70), max_size=30),
)
def test_each_multiple_is_due_once_however_steps_jump(
    every: int, begin: int, jumps: list[int]
) -> None:
    trigger = Trigger(Schedule(steps=every))
    trigger.start(begin, 0.0)
    step, passed = begin, begin // every
    for jump in jumps:
        step += jump
        due = trigger.due(step, 0.0)
        assert due == (step // every > passed)
        assert not trigger.due(step, 0.0)
        passed = step // every


@pytest.mark.parametrize(
    ("schedule", "moments", "due"),
    [
        (Schedule(), [(1000, 1e9)], []),
        (Schedule(steps=10), [(9, 0), (12, 0), (12, 0), (19, 0), (41, 0)], [12, 41]),
        # From when it was last due.
        (Schedule(seconds=10), [(1, 4.0), (2, 11.0), (3, 20.9), (4, 21.0)], [2, 4]),
        (Schedule(at_steps=(1, 5)), [(step, 0.0) for step in range(1, 8)], [1, 5]),
        (
            Schedule(steps=4, seconds=30, at_steps=(1,)),
            [(1, 0.0), (2, 0.0), (3, 60.0), (4, 60.0)],
            [1, 3, 4],
        ),
    ],
    ids=str,
)
def test_what_is_set_is_due(
    schedule: Schedule, moments: list[tuple[int, float]], due: list[int]
) -> None:
    trigger = Trigger(schedule)
    trigger.start(0, 100.0)
    assert [step for step, seconds in moments if trigger.due(step, 100.0 + seconds)] == due


def test_the_end_is_due_once() -> None:
    trigger = Trigger(Schedule(steps=5, at_end=True))
    assert trigger.due(5, 0.0)
    assert not trigger.due_at_end(5)
    assert not trigger.due(6, 0.0)
    assert trigger.due_at_end(6)
    trigger.done(6)
    assert not trigger.due_at_end(6)


@pytest.mark.parametrize(
    ("when", "first", "due"),
    [
        ("1 epoch", 0, [4, 8, 12]),
        ("2 epochs", 0, [8]),
        ("2 epochs", 1, [4, 12]),  # After the second epoch, of which one was done before.
        ("at epoch 3, 5 steps", 0, [5, 10, 12]),
        ("at epoch 3", 2, [4]),
    ],
)
def test_epochs_end_at_their_steps(when: str, first: int, due: list[int]) -> None:
    trigger = Trigger(replace(as_schedule(when), counted=Epochs(4, first=first)))
    assert [step for step in range(1, 13) if trigger.due(step, 0.0)] == due
