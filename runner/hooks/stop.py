"""Ends the loop at a global step, or when something asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from runner.config.schedule import as_seconds
from runner.hooks.scheduled import Clock

_RunArgs: TypeAlias = tf.compat.v1.train.SessionRunArgs
_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues


class StopAtStepHook(tf.compat.v1.train.StopAtStepHook):
    """`tf.compat.v1.train.StopAtStepHook` that takes no step when the last one is already done."""

    def __init__(self, last_step: int) -> None:
        """Stops when the global step reaches `last_step`."""
        super().__init__(last_step=last_step)
        self._until, self._over = last_step, False

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Stops at once when a resumed session is at its end."""
        super().after_create_session(session, coord)
        self._over = int(session.run(tf.compat.v1.train.get_global_step())) >= self._until
        if self._over:
            coord.request_stop()

    def before_run(self, run_context: _RunContext) -> _RunArgs:
        """Asks for the step.

        Raises:
          StopIteration: when the last step was done already, as a session finds that was made in
            place of a lost one during a step; a monitored session ends by it in good order.
        """
        if self._over:
            raise StopIteration("the last step is done")
        return super().before_run(run_context)

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Stops after the last step."""
        # TensorFlow's reads the step by a tensor of its own, for which the session would have to
        # be prepared once more.
        session = run_context.session
        if run_values.results + 1 >= self._until:
            step = session.run(tf.compat.v1.train.get_global_step(session.graph))
            if step >= self._until:
                run_context.request_stop()


class StopWhenHook(tf.compat.v1.train.SessionRunHook):
    """Ends the loop after the step during which `asked` became true."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        """Stores the question."""
        self._asked = asked

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Asks."""
        if self._asked():
            run_context.request_stop()


class WallClockLimitHook(tf.compat.v1.train.SessionRunHook):
    """Asks the loop to end after the step during which the limit passed.

    The time counts from when this process began to train; a recovered session does not reset it.
    """

    def __init__(self, limit: float | str, clock: Clock = time.monotonic) -> None:
        """Stores its arguments.

        Args:
          limit: seconds, or a text such as `90 minutes` or `8 hours`.
          clock: seconds from any origin.

        Raises:
          ValueError: when `limit` is no duration.
        """
        self._limit, self._clock = as_seconds(limit), clock

    def begin(self) -> None:
        """Starts the time."""
        self._end = self._clock() + self._limit

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Looks at the clock."""
        if self._clock() >= self._end:
            run_context.request_stop()
