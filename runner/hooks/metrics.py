"""Hands the training step's metrics to a recorder every so many steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import tensorflow as tf

_RunArgs: TypeAlias = tf.compat.v1.train.SessionRunArgs
_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues

# Takes metric name -> value and the global step.
Record = Callable[[Mapping[str, float], int], None]


class MetricsHook(tf.compat.v1.train.SessionRunHook):
    """Fetches scalars at every step whose number is a multiple of `every`, and at no other."""

    def __init__(
        self, values: Mapping[str, tf.Tensor], step: tf.Tensor, every: int, record: Record
    ) -> None:
        """Stores its arguments.

        Args:
          values: metric name -> scalar.
          step: the global step after the train op has run.
          every: how many steps apart.
          record: is given the values, as floats, and the step.
        """
        self._values, self._step_after, self._every, self._record = values, step, every, record
        self._next = 0

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Learns which step comes next."""
        self._next = int(session.run(tf.compat.v1.train.get_global_step())) + 1

    def before_run(self, run_context: _RunContext) -> _RunArgs:
        """Asks for the values where they are due."""
        due = self._next % self._every == 0
        return _RunArgs((self._step_after, dict(self._values) if due else {}))

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Records them."""
        step, values = run_values.results
        self._next = int(step) + 1
        if values:
            self._record({name: float(value) for name, value in values.items()}, int(step))
