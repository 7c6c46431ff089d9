from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from runner.hooks import CheckpointHook, StopAtStepHook
from runner.hooks.scheduled import ScheduledHook
from tests.tiny.clock import Clock
from tests.tiny.counter import Counter


class _Note(ScheduledHook):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps: list[int] = []

    def act(self, session: tf.Session, step: int) -> None:
        self.steps.append(step)


@pytest.mark.parametrize(
    ("every", "at_end", "steps"),
    [
        (3, False, [3, 6]),
        ("3 steps", True, [3, 6, 7]),
        ("3 steps, end", False, [3, 6, 7]),
        ("7 steps", True, [7]),
        ({"at_steps": [2]}, False, [2]),
        ("at 2, at 5", True, [2, 5, 7]),
        ("20 seconds", False, [2, 4, 6]),
    ],
)
def test_it_acts_on_its_schedule(
    counter: Counter, every: Any, at_end: bool, steps: list[int]
) -> None:
    hook = _Note(counter.step, every, at_end=at_end, clock=Clock(tick=10.0))
    counter.run([StopAtStepHook(7), hook])
    assert hook.steps == steps


def test_a_resumed_session_keeps_the_rhythm(counter: Counter, tmp_path: Path) -> None:
    hook = _Note(counter.step, 3)
    save = CheckpointHook(counter.saver, tmp_path, counter.step, every=100)
    counter.run([StopAtStepHook(4), hook, save])
    counter.run([StopAtStepHook(9), hook], own=tmp_path)
    assert hook.steps == [3, 6, 9]


def test_what_to_do_is_for_a_subclass_to_say(counter: Counter) -> None:
    with pytest.raises(NotImplementedError):
        counter.run([ScheduledHook(counter.step, 1)])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (5, r"step is 5; it must be a tensor, such as \$\{graph:step\}"),
        ("${graph:step} + 1", "it must be a tensor"),
        (tf.zeros([3]), r"step has the shape \(3,\); it must be a scalar"),
    ],
)
def test_a_step_that_is_none(step: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduledHook(step, 1)
