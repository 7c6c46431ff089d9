"""Evaluates a split in the training session, without touching the state of training."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from runner.config.schedule import When
from runner.errors import ConfigError, Problem
from runner.graph.experiment import Split
from runner.graph.optimization import AveragedWeights
from runner.hooks.scheduled import Clock, ScheduledHook, present_step
from runner.system.atomic_files import write_json

_Session: TypeAlias = tf.compat.v1.Session

# Takes the session, metric name -> value, and the global step.
OnResult = Callable[[_Session, Mapping[str, float], int], None]


class EvaluationCutError(Exception):
    """An evaluation was asked to end before its time."""


def evaluate(
    session: _Session, split: Split, cut: Callable[[], bool] = lambda: False
) -> dict[str, float]:
    """Returns each metric's mean over one pass of the split, summed in float64.

    Args:
      session: holds the weights.
      split: what to evaluate.
      cut: asked after each batch whether to end without a result.

    Raises:
      EvaluationCutError: when `cut` said so.
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

    An evaluation that a signal cuts short is left to the session that resumes from that step,
    before its first step.

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
        """Stores its arguments.

        Args:
          split: what to evaluate.
          step: the global step after the train op has run.
          every: the schedule.
          on_result: is given the session, the metrics and the step.
          at_end: whether to evaluate at the end too, asked when it has come.
          averages: evaluated in place of the weights; None evaluates the weights.
          cut: asked after each batch whether to leave the evaluation to the next session.
          due: the file by which that session knows; None forgets the evaluation.
          others_train: whether other workers change the weights meanwhile; a result is then told
            of the step at which it is there.
          clock: seconds from any origin.
        """
        super().__init__(step, every, at_end=True, clock=clock)
        self.metrics = tuple(split.sums)
        self._split, self._on_result, self._at_end = split, on_result, at_end
        self._averages, self._cut, self._due = averages, cut, due
        self._others_train = others_train

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        """Makes up for an evaluation of this step that was cut short."""
        super().after_create_session(session, coord)
        self.latest = None  # What a session before this one found may be of steps to be repeated.
        if self._due is None or not self._due.is_file():
            return
        due = int(json.loads(self._due.read_text())["step"])
        if due == self._step or (self._others_train and due < self._step):
            self._trigger.done(self._step)
            self.act(session, self._step)
        else:
            self._due.unlink()

    def end(self, session: _Session) -> None:
        """Evaluates the last step, unless that is done or not asked for."""
        if self._at_end():
            super().end(session)

    def act(self, session: _Session, step: int) -> None:
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
