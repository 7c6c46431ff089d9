"""Schedules, and what is recorded on them: metrics, rewinds, summaries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from runner.graph.experiment import Split
from runner.hooks import (
    CheckpointHook,
    EvaluationHook,
    MetricsHook,
    RewindHook,
    StopAtStepHook,
    SummariesHook,
)
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
def test_a_step_that_is_not_a_scalar_tensor(step: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduledHook(step, 1)


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


def test_metrics_of_a_resumed_session_keep_the_rhythm(counter: Counter, tmp_path: Path) -> None:
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


def test_every_session_rewinds_to_the_step_from_which_it_continues(tmp_path: Path) -> None:
    steps: list[int] = []
    for _ in range(2):
        with tf.Graph().as_default():
            step = tf.train.get_or_create_global_step()
            train_op = tf.assign_add(step, 1)
            with tf.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path),
                hooks=[RewindHook(steps.append)],
                log_step_count_steps=0,
            ) as session:
                for _ in range(3):
                    session.run(train_op)
    assert steps == [0, 3]


def _written(directory: Path) -> list[tuple[str, int, float]]:
    return [
        (value.tag, event.step, value.simple_value)
        for file in sorted(directory.glob("events.*"))
        for event in tf.train.summary_iterator(str(file))
        for value in event.summary.value
    ]


def _evaluation(counter: Counter, every: int) -> EvaluationHook:
    iterator = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensors([4.0]))
    total = tf.reduce_sum(iterator.get_next())
    split = Split(
        "validation", iterator.initializer, {"loss": total}, {"loss": tf.constant(1, tf.int64)}
    )
    return EvaluationHook(split, counter.step, every)


def test_training_and_evaluation_are_written(counter: Counter, tmp_path: Path) -> None:
    evaluation = _evaluation(counter, every=3)
    hook = SummariesHook(
        {"loss": counter.value}, counter.step, tmp_path, every=2, evaluation=evaluation
    )
    counter.run([StopAtStepHook(4), evaluation, hook])
    assert sorted(_written(tmp_path)) == [
        ("train/loss", 2, 20.0),
        ("train/loss", 4, 40.0),
        ("validation/loss", 3, 4.0),
        ("validation/loss", 4, 4.0),
    ]


def test_without_an_evaluation_it_writes_training_alone(counter: Counter, tmp_path: Path) -> None:
    counter.run([StopAtStepHook(3), SummariesHook({"x": counter.value}, counter.step, tmp_path, 3)])
    assert _written(tmp_path) == [("train/x", 3, 30.0)]
