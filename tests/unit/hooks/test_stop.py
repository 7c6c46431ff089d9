from __future__ import annotations

from pathlib import Path

from runner.hooks import CheckpointHook, StopAtStepHook, StopWhenHook
from tests.tiny.counter import Counter


def test_it_stops_at_the_step(counter: Counter) -> None:
    assert counter.run([StopAtStepHook(7)]) == 7


def test_a_resumed_session_takes_only_the_steps_that_are_left(
    counter: Counter, tmp_path: Path
) -> None:
    save = CheckpointHook(counter.saver, tmp_path, counter.step, every=100)
    assert counter.run([StopAtStepHook(4), save]) == 4
    assert counter.run([StopAtStepHook(7)], own=tmp_path) == 3


def test_a_session_resumed_at_its_last_step_takes_none(counter: Counter, tmp_path: Path) -> None:
    save = CheckpointHook(counter.saver, tmp_path, counter.step, every=100)
    counter.run([StopAtStepHook(4), save])
    assert counter.run([StopAtStepHook(4)], own=tmp_path) == 0


def test_it_stops_after_the_step_in_which_it_is_asked(counter: Counter) -> None:
    answers = iter([False, False, True])
    assert counter.run([StopWhenHook(lambda: next(answers))]) == 3
