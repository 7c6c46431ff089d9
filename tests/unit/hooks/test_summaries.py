from __future__ import annotations

from pathlib import Path

import tensorflow.compat.v1 as tf

from runner.graph.experiment import Split
from runner.hooks import EvaluationHook, StopAtStepHook, SummariesHook
from tests.tiny.counter import Counter


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
