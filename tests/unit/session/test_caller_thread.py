"""How a step settles on the pool of threads or on the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.session.caller_thread import LONGEST_S, SAMPLES, ShortStep, needs_pool
from runner.tensorflow_internals import Step


class Trial:
    """A step whose time depends on the way it is run."""

    def __init__(self, pooled: float, inline: float, *, needs_pool: bool = False) -> None:
        self.now, self.prepared = 0.0, list[bool]()
        self.seconds = {False: pooled, True: inline}
        self.step = ShortStep(self._prepare, lambda: needs_pool, lambda: self.now)

    def _prepare(self, inline: bool) -> Step:
        self.prepared.append(inline)

        def run(*values: Any) -> list[Any]:
            self.now += self.seconds[inline]
            return [inline, *values]

        return run

    def settle(self) -> tuple[int, Any]:
        """Returns how many calls it takes, and which way the step is run from then on."""
        calls = 0
        while not self.step.settled:
            assert self.step(calls)[1] == calls
            calls += 1
        return calls, self.step()[0]


@pytest.mark.parametrize(
    ("trial", "calls", "inline"),
    [
        (Trial(2e-5, 1e-5), 2 * SAMPLES, True),
        (Trial(1e-5, 2e-5), 2 * SAMPLES, False),
        (Trial(2 * LONGEST_S, 1e-5), SAMPLES, False),
        (Trial(2e-5, 1e-5, needs_pool=True), SAMPLES, False),
    ],
    ids=["faster there", "slower there", "long", "waits for others"],
)
def test_a_short_step_settles_on_the_faster_way(trial: Trial, calls: int, inline: bool) -> None:
    assert trial.settle() == (calls, inline)
    assert trial.prepared == [False] if calls == SAMPLES else [False, True]


def test_steps_that_fail_are_not_timed() -> None:
    def fail() -> list[Any]:
        raise ValueError("always")

    step = ShortStep(lambda inline: fail, lambda: False)
    for _ in range(3 * SAMPLES):
        with pytest.raises(ValueError, match="always"):
            step()
    assert not step.settled


def _if(inside: Callable[[], tf.Tensor]) -> tf.Tensor:
    return tf.cond(tf.placeholder_with_default(True, []), inside, lambda: tf.constant(0))


def _staged() -> tf.Tensor:
    area = tf.raw_ops.Stage(values=[tf.constant(1)], shared_name="area")
    with tf.control_dependencies([area]):
        return tf.raw_ops.Unstage(dtypes=[tf.int32], shared_name="area")[0]


@tf.function
def _doubled(value: Any) -> Any:
    return value * 2.0


STEPS: dict[str, tuple[bool, Callable[[], Any]]] = {
    "arithmetic": (False, lambda: tf.constant(1.0) + 2.0),
    "variable": (False, lambda: tf.assign_add(tf.get_variable("v", []), 1.0).op),
    "global step as hooks read it": (False, lambda: _if(lambda: tf.constant(1))),
    "function": (False, lambda: _doubled(tf.constant(1.0))),
    "queue": (True, lambda: tf.FIFOQueue(1, tf.int32).dequeue() + 1),
    "input pipeline": (
        True,
        lambda: tf.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next(),
    ),
    "python": (True, lambda: tf.py_func(lambda: np.float32(1), [], tf.float32)),
    "staging": (True, _staged),
    "staging in a function": (True, lambda: _if(_staged)),
}


@pytest.mark.parametrize("name", STEPS)
def test_which_graphs_need_the_pool(name: str) -> None:
    expected, build = STEPS[name]
    with tf.Graph().as_default() as graph:
        build()
        assert needs_pool(graph) is expected
