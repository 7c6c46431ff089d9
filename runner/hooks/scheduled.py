"""The base of hooks that act on a schedule."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import tensorflow as tf

from runner.config.schedule import Trigger, When, as_schedule

SessionRunArgs: TypeAlias = tf.compat.v1.train.SessionRunArgs
SessionRunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
SessionRunValues: TypeAlias = tf.compat.v1.train.SessionRunValues
Session: TypeAlias = tf.compat.v1.Session

Clock: TypeAlias = Callable[[], float]


class ScheduledHook(tf.compat.v1.train.SessionRunHook):
    """Calls `act` after the steps that a schedule names.

    Args:
      step: the global step after the train op has run, an integer scalar.
      every: the schedule, such as `100`, `50 steps` or `10 minutes`.
      at_end: whether to act at the end too, whatever the schedule; False by default.
      clock: seconds from any origin; for tests.

    Raises:
      ValueError: when `every` is not a schedule, or `step` not a scalar.
    """

    def __init__(
        self, step: tf.Tensor, every: When, *, at_end: bool = False, clock: Clock = time.monotonic
    ) -> None:
        require_scalar("step", step)
        schedule = as_schedule(every)
        self._trigger = Trigger(replace(schedule, at_end=schedule.at_end or at_end))
        self._step_after, self._clock = step, clock
        self._step = 0

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Starts the schedule at the step from which the session starts."""
        self._step = present_step(session)
        self._trigger.start(self._step, self._clock())

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches the step."""
        return SessionRunArgs(self._step_after)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Acts where the schedule says so."""
        self._step = int(run_values.results)
        if self._trigger.due(self._step, self._clock()):
            self.act(run_context.session, self._step)

    def end(self, session: Session) -> None:
        """Acts at the end, if that is asked for and the hook has not acted after the last step."""
        if self._trigger.due_at_end(self._step):
            self.act(session, self._step)

    def act(self, session: Session, step: int) -> None:
        """Does the work of the hook, after the global step `step`; by default nothing."""


def present_step(session: Session) -> int:
    """Returns the global step, which other workers may have increased since this one's step."""
    return int(session.run(tf.compat.v1.train.get_global_step(session.graph)))


def require_scalar(name: str, value: tf.Tensor) -> None:
    """Checks a tensor that a configuration gave.

    Raises:
      ValueError: when it is not a tensor or variable, or known not to be a scalar.
    """
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tf.TensorShape):
        raise ValueError(f"{name} is {value!r}; it must be a tensor, such as ${{graph:{name}}}")
    if shape.rank not in (0, None):
        raise ValueError(f"{name} has the shape {tuple(shape)}; it must be a scalar")
