"""Ends the training when evaluations stop improving."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from runner.config.choices import Goal
from runner.errors import ConfigError, Problem, ranked
from runner.hooks.evaluation import EvaluationHook
from runner.system.atomic_files import write_text

_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues

RECORD = "early_stopping.json"


def exhausted(values: Sequence[float], patience: int, min_delta: float, goal: Goal) -> bool:
    """Says whether the last `patience` values brought no improvement over those before.

    Args:
      values: one metric, evaluation by evaluation. NaN never improves.
      patience: how many evaluations without improvement are too many.
      min_delta: by how much at least a value must beat the best one before it.
      goal: whether larger or smaller is better.
    """
    sign = 1.0 if goal is Goal.maximize else -1.0
    best, waited = -math.inf, 0
    for value in values:
        if sign * value > best + (min_delta if math.isfinite(best) else 0.0):
            best, waited = sign * value, 0
        else:
            waited += 1
    return waited >= patience


class EarlyStoppingHook(tf.compat.v1.train.SessionRunHook):
    """Asks the loop to end when a metric of an `EvaluationHook` has stopped improving."""

    def __init__(
        self,
        evaluation: EvaluationHook,
        metric: str = "loss",
        patience: int = 5,
        min_delta: float = 0.0,
        mode: Goal | str = Goal.minimize,
        directory: Path | str | None = None,
    ) -> None:
        """Stores its arguments.

        Args:
          evaluation: whose results are judged; it stands before this hook.
          metric: the name of one of its metrics.
          patience: how many evaluations without improvement end the training.
          min_delta: improvements of not more than this do not count.
          mode: `minimize` or `maximize`.
          directory: where `early_stopping.json` keeps the history, so that a resumed run counts
            on; None begins anew with every process.

        Raises:
          ValueError: when `evaluation` is none, `patience` below 1, `min_delta` below 0, or there
            is no such mode.
        """
        if patience < 1 or min_delta < 0:
            raise ValueError(
                f"patience is {patience} and min_delta {min_delta:g}; at least 1 and 0 are needed"
            )
        if isinstance(mode, str) and mode not in Goal.__members__:
            raise ValueError(f"no mode {mode!r}; choices: {', '.join(Goal.__members__)}")
        if not hasattr(evaluation, "metrics"):
            raise ValueError(f"evaluation is {evaluation!r}; it is for example ${{run:evaluation}}")
        self._evaluation, self._metric, self._patience = evaluation, metric, patience
        self._min_delta, self._goal = min_delta, Goal[mode] if isinstance(mode, str) else mode
        self._record = Path(directory) / RECORD if directory else None
        self._history: list[tuple[int, float]] = []

    def begin(self) -> None:
        """Looks whether there is such a metric.

        Raises:
          ConfigError: when no evaluation produces it.
        """
        if self._metric not in self._evaluation.metrics:
            raise ConfigError(
                Problem(
                    f"early stopping looks for the metric {self._metric!r}",
                    "no evaluation produces it",
                    choices=ranked(self._metric, self._evaluation.metrics),
                )
            )

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Takes up the history up to the step that the session starts from, and its verdict."""
        if self._record is not None and self._record.is_file():
            self._history = [(step, value) for step, value in json.loads(self._record.read_text())]
        start = int(session.run(tf.compat.v1.train.get_global_step()))
        self._history = [each for each in self._history if each[0] <= start]
        self._judge_new()
        if self._is_exhausted():  # The process died after that was found, before it ended the run.
            coord.request_stop()

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Judges a new evaluation."""
        if self._judge_new() and self._is_exhausted():
            tf.compat.v1.logging.info("early stopping at step %d", self._history[-1][0])
            run_context.request_stop()

    def _judge_new(self) -> bool:
        """Takes a new evaluation into the history; whether there is one."""
        latest = self._evaluation.latest
        if latest is None or (self._history and latest[0] <= self._history[-1][0]):
            return False
        step, metrics = latest
        self._history.append((step, metrics[self._metric]))
        if self._record is not None:
            try:
                write_text(self._record, json.dumps(self._history))
            except OSError as error:  # The whole history is written again at the next evaluation.
                tf.compat.v1.logging.warning("%s is not written: %s", self._record, error)
        return True

    def _is_exhausted(self) -> bool:
        values = [value for _, value in self._history]
        return exhausted(values, self._patience, self._min_delta, self._goal)
