"""The reactions to a loss or a variable that is NaN or infinite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from runner.config.choices import NonFinite
from runner.errors import NonFiniteLossError, Problem
from runner.hooks import (
    CheckpointHook,
    FiniteCheck,
    MetricsHook,
    NanLossHook,
    NanLossPolicy,
    StopAtStepHook,
)
from tests.samples.counter import Counter


def _hook(counter: Counter, directory: Path, bad: float, at: int) -> NanLossHook:
    loss = tf.where(counter.step < at, counter.value, bad)
    return NanLossHook(loss, counter.step, directory, "lower the learning rate")


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_it_stops_where_the_loss_is_no_number(counter: Counter, tmp_path: Path, bad: str) -> None:
    def run(*more: tf.train.SessionRunHook) -> Problem:
        hook = _hook(counter, tmp_path, float(bad), at=3)
        with pytest.raises(NonFiniteLossError, match=f"the loss is {bad} at step 3\n") as caught:
            counter.run([hook, *more, StopAtStepHook(5)])
        return caught.value.problems[0]

    problem = run()
    assert problem.cause == "no checkpoint was saved before it"
    assert problem.remedy == "lower the learning rate"
    # As the first hook it keeps the bad step from being saved.
    problem = run(CheckpointHook(counter.saver, tmp_path, counter.step, every=1))
    assert problem.cause == f"the last checkpoint before it is {tmp_path}/model.ckpt-2"
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-2")


class _Diverging:
    """A loss that becomes NaN at a step, unless the scale is at most `needed`."""

    def __init__(self, counter: Counter, needed: float, at: int = 5) -> None:
        self.scale = tf.get_variable("scale", initializer=1.0, use_resource=True)
        self.loss = tf.where(
            (counter.step >= at) & (self.scale > needed), float("nan"), counter.value
        )
        self.saver = tf.train.Saver(max_to_keep=2, save_relative_paths=True)
        self.lines: list[str] = []
        self.scales: list[float] = []

    def run(self, counter: Counter, directory: Path, last: int = 8, **arguments: Any) -> int:
        counter.saver = self.saver
        policy = NanLossPolicy(scale=self.scale, **arguments)
        given = (self.loss, counter.step, directory, "lower it")
        hook = NanLossHook(*given, policy, self.lines.append)

        def note(values: Mapping[str, float], step: int) -> None:
            self.scales.append(values["scale"])

        record = MetricsHook({"scale": self.scale}, counter.step, 1, note)
        save = CheckpointHook(self.saver, directory, counter.step, every=2)
        return counter.run([hook, record, save, StopAtStepHook(last)], own=directory)


def test_a_rollback_goes_back_to_the_last_checkpoint_with_a_lower_rate(
    counter: Counter, tmp_path: Path
) -> None:
    case = _Diverging(counter, needed=0.5)
    case.run(counter, tmp_path, action="rollback")
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-8")
    assert case.lines == [
        f"the loss is nan at step 5: back to {tmp_path}/model.ckpt-4 (1 of at most 3 times), "
        "learning rate times 0.5"
    ]
    assert case.scales == [1.0] * 4 + [0.5] * 4
    # A later process finds the scale in the checkpoint.
    assert tf.train.load_variable(str(tmp_path), "scale") == 0.5


def test_rollbacks_to_one_checkpoint_lower_the_rate_further_until_too_many(
    counter: Counter, tmp_path: Path
) -> None:
    case = _Diverging(counter, needed=0.3)
    with pytest.raises(NonFiniteLossError, match="at step 5, after 1 rollbacks"):
        case.run(counter, tmp_path, action="rollback", rollbacks=1)
    case.lines.clear()
    case.scales.clear()
    case.run(counter, tmp_path, action=NonFinite["rollback"])
    assert [line.rpartition(" ")[2] for line in case.lines] == ["0.5", "0.25"]
    assert case.scales == [0.25] * 4


def test_without_a_checkpoint_a_rollback_begins_again(counter: Counter, tmp_path: Path) -> None:
    case = _Diverging(counter, needed=0.5, at=1)
    assert case.run(counter, tmp_path, last=1, action="rollback") == 1
    assert "back to the beginning" in case.lines[0]


def test_stop_ends_the_training_in_good_order(counter: Counter, tmp_path: Path) -> None:
    case = _Diverging(counter, needed=0.0)
    assert case.run(counter, tmp_path, action="stop") == 5
    assert case.lines == ["training stops because the loss is nan at step 5"]
    with pytest.raises(ValueError, match="no action 'ignore'; choices: stop, raise, rollback"):
        NanLossPolicy("ignore")


def test_a_resumed_run_counts_the_rollbacks_of_its_former_life(
    counter: Counter, tmp_path: Path
) -> None:
    count = tf.get_variable("rollbacks", initializer=0, use_resource=True)
    case = _Diverging(counter, needed=0.5)
    case.run(counter, tmp_path, last=6, action="rollback", rollbacks=1, count=count)
    assert tf.train.load_variable(str(tmp_path), "rollbacks") == 1
    case.loss = tf.where(counter.step >= 8, float("nan"), counter.value)
    with pytest.raises(NonFiniteLossError, match="at step 8, after 1 rollbacks"):
        case.run(counter, tmp_path, last=9, action="rollback", rollbacks=1, count=count)


def test_it_names_the_variables_that_hold_nan_or_infinity(counter: Counter) -> None:
    variables = {
        "good": tf.get_variable("a", initializer=[1.0, 2.0]),
        "nan": tf.get_variable("b", initializer=[1.0, float("nan")]),
        "infinite": tf.get_variable("c", initializer=float("-inf")),
        "large": tf.get_variable("e", initializer=[3e38, -3e38]),
        "half": tf.get_variable("d", initializer=tf.constant(float("inf"), tf.bfloat16)),
        "step": counter.step_variable,
    }
    check = FiniteCheck(variables)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert check.non_finite(session) == ["nan", "infinite", "half"]
