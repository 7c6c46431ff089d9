"""Evaluates a split in the training session, without touching the state of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import tensorflow as tf

from runner.errors import ConfigError, Problem
from runner.experiment import Split

_RunArgs: TypeAlias = tf.compat.v1.train.SessionRunArgs
_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues
_Session: TypeAlias = tf.compat.v1.Session

# Takes the session, metric name -> value, and the global step.
OnResult = Callable[[_Session, Mapping[str, float], int], None]


def evaluate(session: _Session, split: Split) -> dict[str, float]:
    """Returns each metric's mean over one pass of the split, summed in float64.

    Raises:
      ConfigError: when the split holds no example.
    """
    session.run(split.initializer)
    sums = dict.fromkeys(split.sums, 0.0)
    counts = dict.fromkeys(split.counts, 0)
    while True:
        try:
            batch_sums, batch_counts = session.run((dict(split.sums), dict(split.counts)))
        except tf.errors.OutOfRangeError:
            break
        for name in sums:
            sums[name] += float(batch_sums[name])
            counts[name] += int(batch_counts[name])
    if not all(counts.values()):
        raise ConfigError(Problem(f"data.{split.name}() gives no example to evaluate"))
    return {name: sums[name] / counts[name] for name in sums}


class EvaluationHook(tf.compat.v1.train.SessionRunHook):
    """Evaluates every so many steps and at the end."""

    def __init__(
        self,
        split: Split,
        step: tf.Tensor,
        every: int,
        on_result: OnResult,
        at_end: Callable[[], bool] = lambda: True,
    ) -> None:
        """Stores its arguments.

        Args:
          split: what to evaluate.
          step: the global step after the train op has run.
          every: how many steps apart.
          on_result: is given the session, the metrics and the step.
          at_end: whether to evaluate at the end too, asked when it has come.
        """
        self._split, self._step_after, self._every = split, step, every
        self._on_result, self._at_end = on_result, at_end
        self._step = 0
        self._evaluated: int | None = None

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        """Learns the step that the session starts from."""
        self._step = int(session.run(tf.compat.v1.train.get_global_step()))

    def before_run(self, run_context: _RunContext) -> _RunArgs:
        """Asks for the step."""
        return _RunArgs(self._step_after)

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Evaluates where it is due."""
        self._step = int(run_values.results)
        if self._step % self._every == 0:
            self._evaluate(run_context.session)

    def end(self, session: _Session) -> None:
        """Evaluates the last step, unless that is done."""
        if self._evaluated != self._step and self._at_end():
            self._evaluate(session)

    def _evaluate(self, session: _Session) -> None:
        self._on_result(session, evaluate(session, self._split), self._step)
        self._evaluated = self._step
