from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from runner.hooks import CheckpointHook, MetricsHook, StopAtStepHook
from tests.tiny.clock import Clock
from tests.tiny.counter import Counter


def test_values_are_recorded_at_multiples_only(counter: Counter) -> None:
    recorded: list[tuple[Mapping[str, float], int]] = []
    hook = MetricsHook(
        {"value": counter.value}, counter.step, 3, lambda *args: recorded.append(args)
    )
    counter.run([StopAtStepHook(7), hook])
    assert recorded == [({"value": 30.0}, 3), ({"value": 60.0}, 6)]
    assert type(recorded[0][0]["value"]) is float


def test_values_are_not_even_computed_at_other_steps(counter: Counter) -> None:
    computed = tf.get_variable("computed", initializer=0, collections=["local_variables"])
    with tf.control_dependencies([tf.assign_add(computed, 1)]):
        value = tf.identity(counter.value)
    counts: list[int] = []

    class _Read(tf.train.SessionRunHook):
        def end(self, session: tf.Session) -> None:
            counts.append(int(session.run(computed)))

    hook = MetricsHook({"value": value}, counter.step, 3, lambda values, step: None)
    counter.run([StopAtStepHook(7), hook, _Read()])
    assert counts == [2]


def test_a_resumed_session_keeps_the_rhythm(counter: Counter, tmp_path: Path) -> None:
    steps: list[int] = []
    hook = MetricsHook(
        {"v": counter.value}, counter.step, 3, lambda values, step: steps.append(step)
    )
    save = CheckpointHook(counter.saver, tmp_path, counter.step, every=100)
    counter.run([StopAtStepHook(4), hook, save])
    counter.run([StopAtStepHook(9), hook], own=tmp_path)
    assert steps == [3, 6, 9]


def test_a_schedule_may_count_seconds(counter: Counter) -> None:
    steps: list[int] = []
    hook = MetricsHook(
        {"v": counter.value},
        counter.step,
        "20 seconds",
        lambda values, step: steps.append(step),
        Clock(tick=10.0),
    )
    counter.run([StopAtStepHook(5), hook])
    assert steps == [2, 4]


def test_a_value_that_is_no_scalar_is_refused(counter: Counter) -> None:
    values = {"value": counter.value, "kernel": tf.zeros([3, 4])}
    with pytest.raises(ValueError, match=r"kernel has the shape \(3, 4\); it must be a scalar"):
        MetricsHook(values, counter.step, 1, lambda values, step: None)
