from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from runner.hooks import CheckpointHook, StopAtStepHook, StopWhenHook
from tests.tiny.counter import Counter
from tests.tiny.hooks import AbortOnce


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


def test_a_session_that_is_lost_after_the_last_step_is_saved_takes_no_further(
    counter: Counter, tmp_path: Path
) -> None:
    save = CheckpointHook(counter.saver, tmp_path / "saved", counter.step, every=2)
    lost = AbortOnce(4, str(tmp_path / "lost"))
    # The step in which the session is lost is run again by TensorFlow, and not counted.
    assert counter.run([StopAtStepHook(4), save, lost], own=tmp_path / "saved") == 3
    newest = tf.train.latest_checkpoint(str(tmp_path / "saved"))
    assert newest is not None
    assert newest.endswith("-4")
