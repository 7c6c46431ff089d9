"""Which thread runs a short step, and which steps need the pool."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.internals.tensorflow import Step
from runner.session.short_step import (
    BLOCK,
    LONGEST_S,
    PAUSES,
    ROUNDS,
    SAMPLES,
    ShortStep,
    needs_pool,
)

LOOK = SAMPLES + 2 * ROUNDS * BLOCK


class Trial:
    """A step whose time depends on the way it is run."""

    def __init__(
        self, pooled: Iterator[float], inline: Iterator[float], *, needs_pool: bool = False
    ) -> None:
        self.now, self.prepared = 0.0, list[bool]()
        self.seconds = {False: pooled, True: inline}
        self.step = ShortStep(self._prepare, lambda: needs_pool, lambda: self.now)

    def _prepare(self, inline: bool) -> Step:
        self.prepared.append(inline)

        def run(*values: Any) -> list[Any]:
            self.now += next(self.seconds[inline])
            return [inline, *values]

        return run

    def run(self, calls: int) -> bool:
        """Returns how the last of so many calls is run."""
        results = [self.step(number) for number in range(calls)]
        assert [value for _, value in results] == list(range(calls))
        return bool(results[-1][0])


def always(seconds: float) -> Iterator[float]:
    return itertools.repeat(seconds)


def lucky(seconds: float) -> Iterator[float]:
    """Now and then a call takes a tenth."""
    return itertools.cycle([seconds] * 6 + [seconds / 10])


def unlucky(seconds: float) -> Iterator[float]:
    """Now and then a call waits for a processor."""
    return itertools.cycle([seconds] * 3 + [100 * seconds])


@pytest.mark.parametrize(
    ("trial", "inline"),
    [
        (Trial(always(2e-5), always(1e-5)), True),
        (Trial(always(1e-5), always(2e-5)), False),
        (Trial(lucky(2e-5), always(1e-5)), True),
        (Trial(always(2e-5), unlucky(1e-5)), True),
        (Trial(always(2 * LONGEST_S), always(1e-5)), False),
        (Trial(always(2e-5), always(1e-5), needs_pool=True), False),
    ],
    ids=["faster there", "slower there", "lucky", "unlucky", "long", "waits for others"],
)
def test_a_short_step_takes_the_faster_way(trial: Trial, inline: bool) -> None:
    assert trial.run(LOOK + 1) is inline
    assert not trial.step.settled or len(trial.prepared) == 1
    trial.run(sum(PAUSES) + (len(PAUSES) + 1) * LOOK)
    assert trial.step.settled
    assert trial.run(1) is inline


def test_a_second_look_corrects_the_first() -> None:
    """Another process ends, after which the pool is slower; or the input has warmed up."""
    busy, slow = itertools.repeat(1e-4, ROUNDS * BLOCK), itertools.repeat(2 * LONGEST_S, SAMPLES)
    after_busy = Trial(always(5e-5), itertools.chain(busy, always(1e-5)))
    after_slow = Trial(itertools.chain(slow, always(5e-5)), always(1e-5))
    for trial, look in ((after_busy, LOOK), (after_slow, SAMPLES)):
        assert trial.run(look + 1) is False
        assert trial.run(PAUSES[0] + LOOK + 1) is True


def test_a_failed_call_does_not_count() -> None:
    trial = Trial(always(2e-5), itertools.chain([1e-5] * 3))
    trial.run(SAMPLES + BLOCK + 3)
    with pytest.raises(StopIteration):
        trial.run(1)
    trial.seconds[True] = always(1e-5)
    assert trial.run(LOOK - SAMPLES) is True


def test_calls_of_other_threads_are_not_timed() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def prepare(inline: bool) -> Step:
        def run(*values: Any) -> list[Any]:
            if values:
                entered.set()
                assert go_on.wait(60)
            return [inline]

        return run

    step = ShortStep(prepare, lambda: False)
    thread = threading.Thread(target=step, args=[1])
    thread.start()
    assert entered.wait(60)
    assert [step() for _ in range(2 * LOOK)] == [[False]] * 2 * LOOK
    go_on.set()
    thread.join()


def _if(inside: Callable[[], tf.Tensor]) -> tf.Tensor:
    return tf.cond(tf.placeholder_with_default(True, []), inside, lambda: tf.constant(0))


def _staged() -> tf.Tensor:
    area = tf.raw_ops.Stage(values=[tf.constant(1)], shared_name="area")
    with tf.control_dependencies([area]):
        return tf.raw_ops.Unstage(dtypes=[tf.int32], shared_name="area")[0]


@tf.function
def _doubled(value: Any) -> Any:
    return value * 2.0


def _iterator() -> Any:
    return tf.data.make_initializable_iterator(tf.data.Dataset.range(3))


def _input() -> Any:
    return _iterator().get_next()


def _beside_a_queue() -> Any:
    tf.FIFOQueue(1, tf.int32).dequeue()
    return tf.constant(1.0)


STEPS: dict[str, tuple[bool, Callable[[], Any]]] = {
    "variable": (False, lambda: tf.assign_add(tf.get_variable("v", []), 1.0).op),
    "global step as hooks read it": (False, lambda: _if(lambda: tf.constant(1))),
    "function": (False, lambda: _doubled(tf.constant(1.0))),
    "queue": (True, lambda: tf.FIFOQueue(1, tf.int32).dequeue() + 1),
    "input pipeline": (False, _input),
    "start of an input pipeline": (True, lambda: _iterator().initializer),
    "beside a queue": (False, _beside_a_queue),
    "python": (True, lambda: tf.py_func(lambda: np.float32(1), [], tf.float32)),
    "staging in a function": (True, lambda: _if(_staged)),
}


@pytest.mark.parametrize("name", STEPS)
def test_which_graphs_need_the_pool(graph: tf.Graph, name: str) -> None:
    expected, build = STEPS[name]
    assert needs_pool([build()]) is expected
