"""Writes scalars for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from runner.config.schedule import When
from runner.hooks.evaluation import EvaluationHook
from runner.hooks.metrics import MetricsHook
from runner.hooks.scheduled import Clock

_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues


class SummariesHook(MetricsHook):
    """Writes training metrics on a schedule, and every evaluation, to event files.

    For histograms and images there is `tf.compat.v1.train.SummarySaverHook`.
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
        """Stores its arguments.

        Args:
          values: metric name -> scalar, written as `train/NAME`.
          step: the global step after the train op has run.
          directory: where the event files go.
          every: the schedule of the training metrics.
          evaluation: whose results are written as `validation/NAME`; it stands before this hook.
          clock: seconds from any origin.
        """
        super().__init__(values, step, every, self._write_training, clock)
        self._directory, self._evaluation = str(directory), evaluation
        self._evaluated: int | None = None

    def begin(self) -> None:
        """Opens a new event file."""
        self._writer = tf.compat.v1.summary.FileWriter(self._directory)

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Writes what is new."""
        super().after_run(run_context, run_values)
        self._write_evaluation()

    def end(self, session: tf.compat.v1.Session) -> None:
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
