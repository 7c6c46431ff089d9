"""Evaluates a split in the training session, without changing the state of training."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

import tensorflow as tf

from runner.config.schedule import When
from runner.errors import ConfigError, Problem
from runner.graph.experiment import Split
from runner.graph.optimization import AveragedWeights
from runner.hooks.scheduled import Clock, ScheduledHook, Session, present_step
from runner.system.atomic_files import write_json

# Takes the session, metric name -> value, and the global step.
OnResult = Callable[[Session, Mapping[str, float], int], None]


class EvaluationCutError(Exception):
    """An evaluation was cut short."""


def evaluate(
    session: Session, split: Split, cut: Callable[[], bool] = lambda: False
) -> dict[str, float]:
    """Returns each metric's mean over one pass of the split, summed in float64.

    Args:
      session: holds the weights.
      split: what to evaluate.
      cut: called after each batch; True ends the evaluation without a result.

    Raises:
      EvaluationCutError: when `cut` returned True.
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
        if cut():
            raise EvaluationCutError
        for name in sums:
            sums[name] += float(batch_sums[name])
            counts[name] += int(batch_counts[name])
    if not all(counts.values()):
        raise ConfigError(Problem(f"data.{split.name}() gives no example to evaluate"))
    return {name: sums[name] / counts[name] for name in sums}


class EvaluationHook(ScheduledHook):
    """Evaluates on a schedule and at the end.

    An evaluation that is cut short, as by a signal, is repeated by the session that resumes from
    that step, before its first step.

    Args:
      split: what to evaluate.
      step: the global step after the train op has run.
      every: the schedule.
      on_result: takes the session, the metrics and the step.
      at_end: called at the end; returns whether to evaluate there too. By default it does.
      averages: evaluated in place of the weights; None, the default, evaluates the weights.
      cut: called after each batch; True cuts the evaluation short.
      due: the file that records a cut evaluation; with None, the default, it is not repeated.
      others_train: whether other workers change the weights meanwhile; a result is then recorded
        for the step at which it is complete. False by default.
      clock: seconds from any origin; for tests.

    Attributes:
      metrics: the names of the metrics.
      latest: the step and the metrics of the newest evaluation; None before the first.
    """

    latest: tuple[int, Mapping[str, float]] | None = None

    def __init__(
        self,
        split: Split,
        step: tf.Tensor,
        every: When,
        on_result: OnResult = lambda session, metrics, step: None,
        at_end: Callable[[], bool] = lambda: True,
        averages: AveragedWeights | None = None,
        cut: Callable[[], bool] = lambda: False,
        due: Path | None = None,
        *,
        others_train: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(step, every, at_end=True, clock=clock)
        self.metrics = tuple(split.sums)
        self._split, self._on_result, self._at_end = split, on_result, at_end
        self._averages, self._cut, self._due = averages, cut, due
        self._others_train = others_train

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Repeats an evaluation of this step that was cut short."""
        super().after_create_session(session, coord)
        self.latest = None  # The result of a former session may be of a step that is repeated.
        if self._due is None or not self._due.is_file():
            return
        due = int(json.loads(self._due.read_text())["step"])
        if due == self._step or (self._others_train and due < self._step):
            self._trigger.done(self._step)
            self.act(session, self._step)
        else:
            self._due.unlink()

    def end(self, session: Session) -> None:
        """Evaluates the last step, unless that is done or `at_end` returns False."""
        if self._at_end():
            super().end(session)

    def act(self, session: Session, step: int) -> None:
        """Evaluates."""
        try:
            with self._averages.in_place(session) if self._averages else nullcontext():
                metrics = evaluate(session, self._split, self._cut)
        except EvaluationCutError:
            if self._due is not None:
                write_json(self._due, {"step": step})
            return
        if self._others_train:
            step = present_step(session)
        self.latest = (step, metrics)
        self._on_result(session, metrics, step)
        if self._due is not None:
            self._due.unlink(missing_ok=True)
