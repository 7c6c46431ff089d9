"""Hands the training step's metrics to a recorder on a schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

import tensorflow as tf

from runner.config.schedule import When
from runner.hooks.scheduled import Clock, ScheduledHook, require_scalar

_RunArgs: TypeAlias = tf.compat.v1.train.SessionRunArgs
_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues

# Takes metric name -> value and the global step.
Record: TypeAlias = Callable[[Mapping[str, float], int], None]


class MetricsHook(ScheduledHook):
    """Fetches scalars at the steps that a schedule names, and at no other.

    A schedule in seconds is looked at before a step, since the values come with it.
    """

    def __init__(
        self,
        values: Mapping[str, tf.Tensor],
        step: tf.Tensor,
        every: When,
        record: Record,
        clock: Clock = time.monotonic,
    ) -> None:
        """Stores its arguments.

        Args:
          values: metric name -> scalar.
          step: the global step after the train op has run.
          every: the schedule; an end in it has no meaning here.
          record: is given the values, as floats, and the step.
          clock: seconds from any origin.

        Raises:
          ValueError: when `every` is no schedule, or `step` or a value no scalar.
        """
        super().__init__(step, every, clock=clock)
        for name, value in values.items():
            require_scalar(name, value)
        self._values, self._record = values, record

    def before_run(self, run_context: _RunContext) -> _RunArgs:
        """Asks for the values where they are due."""
        due = self._trigger.due(self._step + 1, self._clock())
        return _RunArgs((self._step_after, dict(self._values) if due else {}))

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Records them."""
        step, values = run_values.results
        self._step = int(step)
        if values:
            self._record({name: float(value) for name, value in values.items()}, self._step)

    def end(self, session: tf.compat.v1.Session) -> None:
        """Does nothing: there is no step to take values from."""


class RewindHook(tf.compat.v1.train.SessionRunHook):
    """Calls `rewind` with the global step of every session that is created.

    A session that resumes or recovers goes on from a checkpoint: the steps after it are recorded
    again.
    """

    def __init__(self, rewind: Callable[[int], None]) -> None:
        """Stores its argument, normally `Tracker.rewind`."""
        self._rewind = rewind

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Tells the step."""
        self._rewind(int(session.run(tf.compat.v1.train.get_global_step())))
