from __future__ import annotations

import tensorflow.compat.v1 as tf

from runner.experiment import InputState
from runner.hooks import InputStateHook, StopAtStepHook
from tests.tiny.counter import Counter


def _failing(message: str) -> tf.Operation:
    with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), [message])]):
        return tf.no_op()


class _State:
    """Counts how often each operation ran."""

    def __init__(self, serialize: tf.Operation | None, strictly: tf.Operation | None) -> None:
        self._counts = tf.get_variable("counts", initializer=[0, 0, 0], use_resource=True)
        ops = []
        for index, op in enumerate((serialize, strictly, None)):
            with tf.control_dependencies([op] if op else []):
                ops.append(self._counts.assign_add(tf.one_hot(index, 3, dtype=tf.int32)).op)
        self.state = InputState(ops[0], ops[1], ops[2], "position")

    def run(self, counter: Counter) -> tuple[list[str], list[int]]:
        lines: list[str] = []
        counter.saver = tf.train.Saver()
        final = tf.train.FinalOpsHook(self._counts)
        counter.run([InputStateHook(self.state, lines.append), StopAtStepHook(3), final])
        return lines, final.final_ops_values.tolist()


def test_what_can_be_saved_is_tried_once_and_nothing_is_said(counter: Counter) -> None:
    assert _State(None, None).run(counter) == ([], [1, 1, 0])


def test_what_cannot_be_saved_is_left_out(counter: Counter) -> None:
    (line,), counts = _State(_failing("no checkpoint"), None).run(counter)
    assert line.startswith("input: its position is not saved (")
    assert counts == [0, 0, 1]
