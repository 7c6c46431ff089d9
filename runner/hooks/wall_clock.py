"""Ends the training in good order when its time is up."""

from __future__ import annotations

import time
from typing import TypeAlias

import tensorflow as tf

from runner.hooks.scheduled import Clock
from runner.schedule import as_seconds

_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues


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
