from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from runner.errors import ConfigError
from runner.graph.averages import AveragedWeights
from runner.graph.evaluation import InGraphEvaluation
from runner.hooks import CheckpointHook, EvaluationCutoff, EvaluationHook, StopAtStepHook
from tests.samples.counter import Counter


def _split(values: list[float], batch_size: int = 2, name: str = "validation") -> InGraphEvaluation:
    """A split whose only metric is the mean of the values; that of training repeats."""
    dataset = tf.data.Dataset.from_tensor_slices(tf.constant(values, tf.float64)).batch(batch_size)
    dataset = dataset.repeat() if name == "train" else dataset
    iterator = tf.data.make_initializable_iterator(dataset)
    _, mean = tf.metrics.mean(iterator.get_next())
    begin = [iterator.initializer, tf.variables_initializer(tf.local_variables())]
    cardinality = int(tf.data.experimental.INFINITE_CARDINALITY) if name == "train" else len(values)
    return InGraphEvaluation(name, tf.group(*begin), {"mean": mean}, cardinality)


class _Results:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.means: list[float] = []

    def __call__(self, session: tf.Session, metrics: Mapping[str, float], step: int) -> None:
        self.steps.append(step)
        self.means.append(metrics["mean"])


def test_every_pass_begins_again() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        split = _split([1.0, 2.0, 6.0])
        for _ in range(2):
            assert split.evaluate(session) == {"mean": 3.0}


def test_an_empty_split_and_one_without_end_are_refused() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        with pytest.raises(ConfigError, match=r"data\.validation\(\) gives no example"):
            _split([]).evaluate(session)
        with pytest.raises(ConfigError, match=r"repeats forever.*\n.*\n.*a method sizes\(\)"):
            _split([1.0], name="train").evaluate(session)


@pytest.mark.parametrize(("steps", "evaluated"), [(7, [3, 6, 7]), (6, [3, 6])])
def test_it_evaluates_at_multiples_and_once_at_the_end(
    counter: Counter, steps: int, evaluated: list[int]
) -> None:
    seen = []

    def look(session: tf.Session, metrics: Mapping[str, float], step: int) -> None:
        seen.append((step, int(session.run(counter.step_variable)), metrics["mean"]))

    hook = EvaluationHook(_split([1.0, 2.0]), counter.step, 3, look)
    unless_cut = _Results()
    cuts = EvaluationCutoff(lambda: bool(unless_cut.steps))
    other = EvaluationHook(_split([1.0]), counter.step, 3, unless_cut, cuts=cuts)
    counter.run([StopAtStepHook(steps), hook, other])
    assert seen == [(step, step, 1.5) for step in evaluated]  # It takes no training step.
    assert hook.latest == (evaluated[-1], {"mean": 1.5})
    assert unless_cut.steps == evaluated[:1]


def test_a_session_resumed_at_its_last_step_evaluates_it(counter: Counter, tmp_path: Path) -> None:
    counter.run([StopAtStepHook(4), CheckpointHook(counter.saver, tmp_path, counter.step, 100)])
    # One that was cut short is made up for, although others trained on.
    for due in (EvaluationCutoff(), EvaluationCutoff(record=_due(tmp_path, 3)[1])):
        results = _Results()
        hook = EvaluationHook(_split([1.0]), counter.step, 3, results, cuts=due)
        counter.run([hook, StopAtStepHook(4)], own=tmp_path)
        assert results.steps == [4]


def test_one_that_is_cut_short_is_made_up_for_by_the_next_session(
    counter: Counter, tmp_path: Path
) -> None:
    results = _Results()
    asked: list[int] = []

    def cut() -> bool:
        asked.append(len(asked))
        return len(asked) == 2  # After the first batch of the second evaluation.

    split, due = _split([1.0, 2.0]), tmp_path / "due.json"
    save = CheckpointHook(counter.saver, tmp_path / "saved", counter.step, every=100)
    hook = EvaluationHook(split, counter.step, 3, results, cuts=EvaluationCutoff(cut, due))
    counter.run([hook, StopAtStepHook(6), save])
    assert results.steps == [3]
    assert due.exists()
    hook = EvaluationHook(split, counter.step, 3, results, cuts=EvaluationCutoff(record=due))
    assert counter.run([hook, StopAtStepHook(8)], own=tmp_path / "saved") == 2
    assert results.steps == [3, 6, 8]
    assert not due.exists()


def _due(folder: Path, step: int) -> tuple[_Results, Path]:
    """Results, and a file as an evaluation leaves it that was cut short at a step."""
    (folder / "due.json").write_text(f'{{"step": {step}}}')
    return _Results(), folder / "due.json"


def test_what_is_due_of_a_later_step_is_left_to_the_schedule(
    counter: Counter, tmp_path: Path
) -> None:
    results, due = _due(tmp_path, 6)
    hook = EvaluationHook(
        _split([1.0]), counter.step, 3, results, cuts=EvaluationCutoff(record=due)
    )
    counter.run([hook, StopAtStepHook(4)])
    assert results.steps == [3, 4]
    assert not due.exists()


def test_where_others_train_meanwhile_a_result_is_of_the_step_at_which_it_is_there(
    counter: Counter, tmp_path: Path
) -> None:
    results, due = _due(tmp_path, 0)
    split = _split([1.0])
    others = tf.group(split.initializer, counter.step_variable.assign_add(10))
    split = replace(split, initializer=others)
    hook = EvaluationHook(split, counter.step, 12, results, cuts=EvaluationCutoff(record=due))
    counter.run([hook, StopAtStepHook(23)])
    # The one that was cut short before; after step 12, at the end.
    assert results.steps == [10, 22, 33]
    assert not due.exists()


def test_averages_are_evaluated_in_place_of_the_weights(counter: Counter) -> None:
    with tf.control_dependencies([counter.train_op]):
        weight = tf.get_variable("w", initializer=0.0, use_resource=True)
        update = weight.assign_add(8.0)
    average = tf.get_variable("average", initializer=0.0, use_resource=True)
    with tf.control_dependencies([update]):
        averages = AveragedWeights([(weight, average)])
        counter.train_op = average.assign(0.5 * average + 0.5 * weight)
    iterator = tf.data.make_initializable_iterator(tf.data.Dataset.range(1))
    value = weight + tf.cast(iterator.get_next(), tf.float32)
    split = InGraphEvaluation("validation", iterator.initializer, {"w": value})
    seen = []

    def look(session: tf.Session, metrics: Mapping[str, float], step: int) -> None:
        seen.append((metrics["w"], float(session.run(weight))))

    hook = EvaluationHook(split, counter.step, 1, look, averages=averages)
    counter.run([StopAtStepHook(2), hook])
    assert seen == [(4.0, 8.0), (10.0, 16.0)]
