"""Ends training: at a step, on request, after a time, when evaluations stop improving."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from runner.config.choices import Goal
from runner.config.schedule import as_seconds
from runner.config.training_schema import implied_goal, metric_of
from runner.errors import ConfigError, ranked
from runner.hooks.evaluation_hook import EvaluationHook
from runner.hooks.scheduled import (
    Clock,
    Session,
    SessionRunArgs,
    SessionRunContext,
    SessionRunValues,
    present_step,
)
from runner.system.atomic_files import write_text


class StopAtStepHook(tf.compat.v1.train.StopAtStepHook):
    """`tf.compat.v1.train.StopAtStepHook` that takes no step when the last one is already done.

    Args:
      last_step: the global step at which training ends.
    """

    def __init__(self, last_step: int) -> None:
        super().__init__(last_step=last_step)
        self._until, self._over = last_step, False

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Stops at once if a resumed session has done its last step."""
        super().after_create_session(session, coord)
        self._over = present_step(session) >= self._until
        if self._over:
            coord.request_stop()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches the step.

        Raises:
          StopIteration: when the last step is done, as it may be in a session that replaces one
            lost during a step. A monitored session takes it for an orderly end.
        """
        if self._over:
            raise StopIteration("the last step is done")
        return super().before_run(run_context)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Stops after the last step."""
        # TensorFlow's hook reads the step by another tensor, one more kind of step to prepare.
        near = run_values.results + 1 >= self._until
        if near and present_step(run_context.session) >= self._until:
            run_context.request_stop()


class StopWhenHook(tf.compat.v1.train.SessionRunHook):
    """Ends training after the step during which `asked` became true.

    Args:
      asked: called after every step.
    """

    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Stops if `asked` returns True."""
        if self._asked():
            run_context.request_stop()


class WallClockLimitHook(StopWhenHook):
    """Ends training after the step during which the limit passed.

    The time counts from when this process began to train; a recovered session does not reset it.

    Args:
      limit: seconds, or a string such as `90 minutes` or `8 hours`.
      clock: seconds from any origin; for tests.

    Raises:
      ValueError: when `limit` is not a duration.
    """

    def __init__(self, limit: float | str, clock: Clock = time.monotonic) -> None:
        super().__init__(lambda: clock() >= self._end)
        self._limit, self._clock = as_seconds(limit), clock

    def begin(self) -> None:
        """Starts the clock."""
        self._end = self._clock() + self._limit


EARLY_STOPPING_RECORD = "early_stopping.json"


def exhausted(values: Sequence[float], patience: int, min_delta: float, goal: Goal) -> bool:
    """Returns whether the last `patience` values brought no improvement over those before.

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
    """Ends training when a metric of an `EvaluationHook` has stopped improving.

    Args:
      evaluation: an earlier hook, whose results are judged.
      objective: one of its metrics, such as `validation/accuracy`; None, the default, takes the
        objective of `evaluation`.
      patience: how many evaluations without improvement end the training, by default 5.
      min_delta: only improvements of more than this count, by default 0.
      goal: `minimize` or `maximize`; None, the default, takes the goal of `evaluation`, or for
        another objective the one that its name implies.
      directory: where `early_stopping.json` keeps the history, so that a resumed run continues to
        count; with None, the default, every process starts with an empty history.

    Raises:
      ValueError: when `evaluation` is not an EvaluationHook, `patience` below 1, `min_delta` below
        0, `goal` something else, or None where the objective's name implies none.
    """

    def __init__(
        self,
        evaluation: EvaluationHook,
        objective: str | None = None,
        patience: int = 5,
        min_delta: float = 0.0,
        goal: Goal | str | None = None,
        directory: Path | str | None = None,
    ) -> None:
        if patience < 1 or min_delta < 0:
            raise ValueError(
                f"patience is {patience} and min_delta {min_delta:g}; at least 1 and 0 are needed"
            )
        if isinstance(goal, str) and goal not in Goal.__members__:
            raise ValueError(f"no goal {goal!r}; choices: {', '.join(Goal.__members__)}")
        if not hasattr(evaluation, "metrics"):
            raise ValueError(f"evaluation is {evaluation!r}; it is for example ${{run:evaluation}}")
        self._evaluation, self._patience, self._min_delta = evaluation, patience, min_delta
        followed = evaluation.objective
        self._metric = metric_of(objective or followed)
        goal = goal or (evaluation.goal if self._metric == followed else implied_goal(self._metric))
        if goal is None and self._metric in evaluation.metrics:
            raise ValueError(
                f"{self._metric} implies no goal; choices: {', '.join(Goal.__members__)}"
            )
        self._goal = Goal(goal or Goal.minimize)
        self._record = Path(directory) / EARLY_STOPPING_RECORD if directory else None
        self._history: list[tuple[int, float]] = []

    def begin(self) -> None:
        """Checks the name of the metric.

        Raises:
          ConfigError: when no evaluation produces it.
        """
        if self._metric not in self._evaluation.metrics:
            raise ConfigError.of(
                f"early stopping needs the metric {self._metric!r}",
                "no evaluation produces it",
                choices=ranked(self._metric, self._evaluation.metrics),
            )

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Reads the history up to the step from which the session starts, and judges it."""
        if self._record is not None and self._record.is_file():
            self._history = [(step, value) for step, value in json.loads(self._record.read_text())]
        start = present_step(session)
        self._history = [(step, value) for step, value in self._history if step <= start]
        self._judge_new()
        if self._is_exhausted():  # The process died before it could end the run.
            coord.request_stop()

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Takes a new evaluation into account."""
        if self._judge_new() and self._is_exhausted():
            tf.compat.v1.logging.info("early stopping at step %d", self._history[-1][0])
            run_context.request_stop()

    def _judge_new(self) -> bool:
        """Adds a new evaluation to the history; returns whether there was one."""
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
