"""Says at the start what a checkpoint will not keep of the training input."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from runner.graph.experiment import InputState

_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues


# A server is lost, which says nothing about the input: a monitored session recovers from them.
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError)


class InputStateHook(tf.compat.v1.train.SessionRunHook):
    """Tries after the first step whether the input's position can be saved.

    Only then do the iterators below it exist. Where it cannot be saved, checkpoints are told to
    leave it out, and everything else is saved as ever.
    """

    def __init__(self, state: InputState, say: Callable[[str], None]) -> None:
        """Stores its arguments.

        Args:
          state: the input's state.
          say: is given a line about what will not be kept.
        """
        self._state, self._say = state, say

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Begins anew: a new session saves the position until it is tried."""
        self._tried = False

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Tries once.

        Raises:
          tf.errors.OpError: a server was lost meanwhile; the next session tries again.
        """
        if self._tried:
            return
        self._tried = True
        session = run_context.session
        try:
            session.run(self._state.serialize_strictly)
            return
        except _LOST:
            raise
        except tf.errors.OpError as error:
            refused = error
        try:
            session.run(self._state.serialize)
        except _LOST:
            raise
        except tf.errors.OpError as error:
            session.run(self._state.leave_out)
            self._say(
                f"input: its position is not saved ({_reason(error)}); a resumed run begins with "
                "its first batch"
            )
            return
        if not isinstance(refused, tf.errors.FailedPreconditionError):
            raise refused
        self._say(
            f"input: its position is saved, but not all its state ({_reason(refused)}); a "
            "resumed run may see other batches"
        )


def _reason(error: tf.errors.OpError) -> str:
    """Returns the last line that is not about a place in the graph or a message between servers."""
    lines = [line.strip() for line in str(error.message).splitlines()]
    told = [line for line in lines if line and not line.startswith("[[")]
    return ([line for line in told if "grpc" not in line.lower()] or told)[-1]
