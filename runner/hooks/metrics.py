"""Records the metrics of training steps, and writes them for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from runner.config.schedule import When
from runner.hooks.evaluation import EvaluationHook
from runner.hooks.scheduled import (
    Clock,
    RunArgs,
    RunContext,
    RunValues,
    ScheduledHook,
    Session,
    present_step,
    require_scalar,
)

# Takes metric name -> value and the global step.
Record: TypeAlias = Callable[[Mapping[str, float], int], None]


class MetricsHook(ScheduledHook):
    """Fetches scalars at the steps that a schedule names, and at no others.

    A schedule in seconds is checked before each step, as the values are fetched with it.

    Args:
      values: metric name -> scalar.
      step: the global step after the train op has run.
      every: the schedule; an `end` in it has no effect.
      record: takes the values, as floats, and the step.
      clock: seconds from any origin; for tests.

    Raises:
      ValueError: when `every` is not a schedule, or `step` or a value not a scalar.
    """

    def __init__(
        self,
        values: Mapping[str, tf.Tensor],
        step: tf.Tensor,
        every: When,
        record: Record,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(step, every, clock=clock)
        for name, value in values.items():
            require_scalar(name, value)
        self._values, self._record = values, record

    def before_run(self, run_context: RunContext) -> RunArgs:
        """Fetches the step, and the values where they are due."""
        due = self._trigger.due(self._step + 1, self._clock())
        return RunArgs((self._step_after, dict(self._values) if due else {}))

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Records them."""
        step, values = run_values.results
        self._step = int(step)
        if values:
            self._record({name: float(value) for name, value in values.items()}, self._step)

    def end(self, session: Session) -> None:
        """Does nothing: no step is left whose values could be fetched."""


class RewindHook(tf.compat.v1.train.SessionRunHook):
    """Calls `rewind` with the global step of every session that is created.

    A session that resumes or recovers continues from a checkpoint: the steps after it are recorded
    again.

    Args:
      rewind: takes the step, as `Tracker.rewind` does.
    """

    def __init__(self, rewind: Callable[[int], None]) -> None:
        self._rewind = rewind

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Calls `rewind`."""
        self._rewind(present_step(session))


class SummariesHook(MetricsHook):
    """Writes training metrics on a schedule, and every evaluation, to event files.

    For histograms and images there is `tf.compat.v1.train.SummarySaverHook`.

    Args:
      values: metric name -> scalar, written as `train/NAME`.
      step: the global step after the train op has run.
      directory: where the event files are written.
      every: the schedule of the training metrics, by default 100 steps.
      evaluation: an earlier hook whose results are written as `validation/NAME`; None, the
        default, writes none.
      clock: seconds from any origin; for tests.
    """

    def __init__(
        self,
        values: Mapping[str, tf.Tensor],
        step: tf.Tensor,
        directory: Path | str,
        every: When = 100,
        evaluation: EvaluationHook | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(values, step, every, self._write_training, clock)
        self._directory, self._evaluation = str(directory), evaluation
        self._evaluated: int | None = None

    def begin(self) -> None:
        """Opens a new event file."""
        self._writer = tf.compat.v1.summary.FileWriter(self._directory)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Writes what is new."""
        super().after_run(run_context, run_values)
        self._write_evaluation()

    def end(self, session: Session) -> None:
        """Writes the last evaluation and closes the file."""
        self._write_evaluation()
        self._writer.close()

    def _write_training(self, values: Mapping[str, float], step: int) -> None:
        self._write("train", values, step)

    def _write_evaluation(self) -> None:
        latest = self._evaluation.latest if self._evaluation else None
        if latest is not None and latest[0] != self._evaluated:
            self._evaluated = latest[0]
            self._write("validation", latest[1], latest[0])

    def _write(self, prefix: str, values: Mapping[str, float], step: int) -> None:
        summary = tf.compat.v1.Summary()
        for name, value in values.items():
            summary.value.add(tag=f"{prefix}/{name}", simple_value=value)
        self._writer.add_summary(summary, step)
