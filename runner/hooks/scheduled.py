"""What hooks that act on a schedule have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import tensorflow as tf

from runner.config.schedule import Trigger, When, as_schedule

_RunArgs: TypeAlias = tf.compat.v1.train.SessionRunArgs
_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues
_Session: TypeAlias = tf.compat.v1.Session

Clock: TypeAlias = Callable[[], float]


class ScheduledHook(tf.compat.v1.train.SessionRunHook):
    """Calls `act` after the steps that a schedule names; subclasses say what is done."""

    def __init__(
        self,
        step: tf.Tensor,
        every: When,
        *,
        at_end: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        """Stores its arguments.

        Args:
          step: the global step after the train op has run, an integer scalar.
          every: the schedule, such as `100`, `50 steps` or `10 minutes`.
          at_end: whether to act at the end too, whatever the schedule says of it.
          clock: seconds from any origin.

        Raises:
          ValueError: when `every` is no schedule, or `step` no scalar.
        """
        require_scalar("step", step)
        schedule = as_schedule(every)
        self._trigger = Trigger(replace(schedule, at_end=schedule.at_end or at_end))
        self._step_after, self._clock = step, clock
        self._step = 0

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        """Learns the step that the session starts from."""
        self._step = present_step(session)
        self._trigger.start(self._step, self._clock())

    def before_run(self, run_context: _RunContext) -> _RunArgs:
        """Asks for the step."""
        return _RunArgs(self._step_after)

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Acts where it is due."""
        self._step = int(run_values.results)
        if self._trigger.due(self._step, self._clock()):
            self.act(run_context.session, self._step)

    def end(self, session: _Session) -> None:
        """Acts at the end, where the schedule asks for it and the last step is not done."""
        if self._trigger.due_at_end(self._step):
            self.act(session, self._step)

    def act(self, session: _Session, step: int) -> None:
        """Does what the hook is for, after the global step `step`."""
        raise NotImplementedError


def present_step(session: _Session) -> int:
    """Returns the global step, also where other workers have moved it on since the own step."""
    return int(session.run(tf.compat.v1.train.get_global_step()))


def require_scalar(name: str, value: tf.Tensor) -> None:
    """Checks a tensor that a configuration gave.

    Raises:
      ValueError: when it is no tensor or variable, or known to be no scalar.
    """
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tf.TensorShape):
        raise ValueError(f"{name} is {value!r}; it must be a tensor, such as ${{graph:{name}}}")
    if shape.rank not in (0, None):
        raise ValueError(f"{name} has the shape {tuple(shape)}; it must be a scalar")
