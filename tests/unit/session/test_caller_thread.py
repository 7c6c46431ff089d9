"""How a step settles on the pool of threads or on the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.session.caller_thread import (
    CLEARLY,
    LONGEST_S,
    SAMPLES,
    WARM_UP,
    Step,
    ThreadTrial,
    needs_pool,
)


class Clock:
    """Time that passes when a step is said to take some."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def step(self, name: str, seconds: float) -> Step:
        def run(*values: Any) -> list[Any]:
            self.now += seconds
            return [name, *values]

        return run


class Trial:
    def __init__(self, pooled: float, inline: float, element: Any) -> None:
        clock = Clock()
        self.pooled, self.inline = clock.step("pooled", pooled), clock.step("inline", inline)
        self.built = 0
        self.settled: list[Step] = []
        self.step = ThreadTrial(
            self.pooled, self._build, [element], self.settled.append, clock=clock
        )

    def _build(self) -> Step:
        self.built += 1
        return self.inline

    def run_until_settled(self) -> int:
        calls = 0
        while not self.settled and calls < 1000:
            assert self.step(calls)[1] == calls
            calls += 1
        return calls


@pytest.fixture
def constant() -> Any:
    with tf.Graph().as_default():
        return tf.constant(1.0)


@pytest.mark.parametrize(("pooled", "inline"), [(2e-5, 1e-5), (1e-5, 0.9e-5), (1e-5, 2e-5)])
def test_the_callers_thread_is_chosen_where_it_is_clearly_faster(
    constant: Any, pooled: float, inline: float
) -> None:
    trial = Trial(pooled, inline, constant)
    assert trial.run_until_settled() == WARM_UP + 2 * SAMPLES
    assert trial.settled == [trial.inline if inline < CLEARLY * pooled else trial.pooled]
    assert trial.built == 1


def test_a_long_step_stays_in_the_pool_untried(constant: Any) -> None:
    trial = Trial(2 * LONGEST_S, 1e-9, constant)
    assert trial.run_until_settled() == WARM_UP + 1
    assert trial.settled == [trial.pooled]
    assert trial.built == 0


def test_a_step_that_needs_the_pool_stays_there_untried() -> None:
    with tf.Graph().as_default():
        trial = Trial(2e-5, 1e-5, tf.FIFOQueue(1, tf.int32).dequeue())
    trial.run_until_settled()
    assert trial.settled == [trial.pooled]
    assert trial.built == 0


def test_steps_that_fail_are_not_timed(constant: Any) -> None:
    def fail() -> list[Any]:
        raise ValueError("always")

    settled: list[Step] = []
    trial = ThreadTrial(fail, lambda: fail, [constant], settled.append)
    for _ in range(3 * WARM_UP):
        with pytest.raises(ValueError, match="always"):
            trial()
    assert settled == []


def _if(inside: Callable[[], tf.Tensor]) -> tf.Tensor:
    return tf.cond(tf.placeholder_with_default(True, []), inside, lambda: tf.constant(0))


def _staged() -> tf.Tensor:
    area = tf.raw_ops.Stage(values=[tf.constant(1)], shared_name="area")
    with tf.control_dependencies([area]):
        return tf.raw_ops.Unstage(dtypes=[tf.int32], shared_name="area")[0]


STEPS: dict[str, tuple[bool, Callable[[], Any]]] = {
    "arithmetic": (False, lambda: tf.constant(1.0) + 2.0),
    "variable": (False, lambda: tf.assign_add(tf.get_variable("v", []), 1.0).op),
    "global step as hooks read it": (False, lambda: _if(lambda: tf.constant(1))),
    "queue": (True, lambda: tf.FIFOQueue(1, tf.int32).dequeue() + 1),
    "behind a control edge": (True, lambda: _after(tf.FIFOQueue(1, tf.int32).enqueue(1))),
    "input pipeline": (True, lambda: _next()),
    "python": (True, lambda: tf.py_func(lambda: np.float32(1), [], tf.float32)),
    "staging": (True, _staged),
    "staging in a function": (True, lambda: _if(_staged)),
}


def _after(operation: tf.Operation) -> tf.Operation:
    with tf.control_dependencies([operation]):
        return tf.no_op()


def _next() -> tf.Tensor:
    return tf.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()


@pytest.mark.parametrize("name", STEPS)
def test_which_steps_need_the_pool(name: str) -> None:
    expected, build = STEPS[name]
    with tf.Graph().as_default():
        assert needs_pool([build()]) is expected


def test_functions_are_looked_at_again_when_the_graph_has_grown() -> None:
    with tf.Graph().as_default():
        harmless = _if(lambda: tf.constant(1))
        assert not needs_pool([harmless])
        _if(_staged)
        assert needs_pool([harmless])
