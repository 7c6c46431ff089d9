from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from runner.graph.experiment import InputState
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
        serialized, strictly_serialized, left_out = ops
        self.state = InputState(serialized, strictly_serialized, left_out, "position")

    def run(self, counter: Counter) -> tuple[list[str], list[int]]:
        lines: list[str] = []
        counter.saver = tf.train.Saver()
        final = tf.train.FinalOpsHook(self._counts)
        counter.run([InputStateHook(self.state, lines.append), StopAtStepHook(3), final])
        return lines, final.final_ops_values.tolist()


def test_what_can_be_saved_is_tried_once_and_nothing_is_said(counter: Counter) -> None:
    assert _State(None, None).run(counter) == ([], [0, 1, 0])


def test_what_cannot_be_saved_is_left_out(counter: Counter) -> None:
    failing = _failing("no checkpoint")
    (line,), counts = _State(failing, failing).run(counter)
    assert line.startswith("input: its position is not saved (")
    assert counts == [0, 0, 1]


class _Session:
    """Fails with the given errors in turn, and remembers what is run."""

    def __init__(self, *errors: Exception) -> None:
        self.ran: list[Any] = []
        self._errors = list(errors)

    def run(self, fetched: Any) -> None:
        self.ran.append(fetched)
        if self._errors:
            raise self._errors.pop(0)


def _try(*errors: Exception) -> tuple[list[str], _Session]:
    lines: list[str] = []
    operations: Any = ("serialize", "strictly", "leave out", "position")
    hook, session = InputStateHook(InputState(*operations), lines.append), _Session(*errors)
    hook.after_create_session(SimpleNamespace(), SimpleNamespace())
    hook.after_run(SimpleNamespace(session=session), SimpleNamespace())
    return lines, session


@pytest.mark.parametrize("lost", [tf.errors.UnavailableError, tf.errors.AbortedError])
def test_a_lost_server_is_left_to_the_recovery(lost: type[tf.errors.OpError]) -> None:
    error, refused = lost(None, None, "gone"), tf.errors.FailedPreconditionError(None, None, "no")
    with pytest.raises(lost, match="gone"):
        _try(error)
    with pytest.raises(lost, match="gone"):
        _try(refused, error)


def test_the_reason_is_not_the_message_between_servers() -> None:
    text = """PyFunc is stateful.
Additional GRPC error information from remote target /job:ps while calling /tensorflow.Worker:
:UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"Socket closed"}
\t [[{{node SerializeIterator}}]]"""
    (line,), session = _try(tf.errors.FailedPreconditionError(None, None, text))
    assert line.startswith("input: its position is saved, but not all its state (PyFunc is statef")
    assert session.ran == ["strictly", "serialize"]
