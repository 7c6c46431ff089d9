"""Evaluates on a schedule, without changing the state of training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tensorflow as tf

from runner.config.choices import Goal
from runner.config.schedule import When, as_schedule
from runner.graph.averages import AveragedWeights
from runner.graph.evaluation import Evaluation, EvaluationCutError, never_cut
from runner.hooks.scheduled import (
    ScheduledHook,
    Session,
    SessionRunContext,
    SessionRunValues,
    present_step,
)
from runner.system.atomic_files import write_json

# Takes the session, metric name -> value, and the global step.
OnResult = Callable[[Session, Mapping[str, float], int], None]


@dataclass(frozen=True)
class EvaluationCutoff:
    """The condition under which an evaluation is cut short.

    Attributes:
      requested: called after each batch, where True cuts the evaluation short, and at the end of
        training, where True leaves it out. By default neither happens.
      record: the file that records a cut evaluation; with None, the default, it is not repeated.
    """

    requested: Callable[[], bool] = never_cut
    record: Path | None = None


class EvaluationWatch:
    """Watches evaluations, and may ask for one; by default does neither.

    Attributes:
      sees_batches: whether `batch` is to be called.
    """

    sees_batches: bool = False

    def asks(self) -> bool:
        """Returns whether to evaluate after this step, whatever the schedule."""
        return False

    def begins(self, session: Session) -> None:
        """Called before an evaluation."""

    def batch(self, session: Session, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of the batches so far, after each batch."""

    def ends(self, session: Session, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of an evaluation that is complete."""


class EvaluationHook(ScheduledHook):
    """Evaluates on a schedule, and at the end unless the schedule names epochs, as `fit` does.

    An evaluation that is cut short, as by a signal, is repeated by the session that resumes from
    that step or a later one, before its first step. A result counts for the step at which it is
    complete: other workers may train meanwhile.

    Args:
      evaluation: what to evaluate.
      step: the global step after the train op has run.
      every: the schedule.
      on_result: takes the session, the metrics and the step.
      averages: evaluated in place of the weights; None, the default, evaluates the weights.
      cuts: when an evaluation is cut short, by default never.
      watch: watches the evaluations.
      objective: the metric that counts, by default `loss`.
      goal: its better direction; by default less is better.

    Attributes:
      metrics: the names of the metrics.
      objective, goal: the arguments.
      latest: the step and the metrics of the newest evaluation; None before the first.
    """

    latest: tuple[int, Mapping[str, float]] | None = None

    def __init__(
        self,
        evaluation: Evaluation,
        step: tf.Tensor,
        every: When,
        on_result: OnResult = lambda session, metrics, step: None,
        averages: AveragedWeights | None = None,
        cuts: EvaluationCutoff | None = None,
        watch: EvaluationWatch | None = None,
        *,
        objective: str = "loss",
        goal: Goal = Goal.minimize,
    ) -> None:
        super().__init__(step, every, at_end=not as_schedule(every).counts_epochs)
        self.metrics, self.objective, self.goal = evaluation.metrics, objective, goal
        self._evaluation, self._on_result, self._averages = evaluation, on_result, averages
        self._cuts, self._watch = cuts or EvaluationCutoff(), watch or EvaluationWatch()

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Repeats an evaluation of this step that was cut short."""
        super().after_create_session(session, coord)
        self.latest = None  # The result of a former session may be of a step that is repeated.
        record = self._cuts.record
        if record is not None and record.is_file():
            if int(json.loads(record.read_text())["step"]) <= self._step:
                self._trigger.done(self._step)
                self.act(session, self._step)
            else:
                record.unlink()

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Evaluates where the schedule says so, or the watch asks for it."""
        super().after_run(run_context, run_values)
        if self._watch.asks() and self._trigger.due_where_epoch_ends(self._step):
            self._trigger.done(self._step)
            self.act(run_context.session, self._step)

    def end(self, session: Session) -> None:
        """Evaluates the last step, unless that is done or a cut is requested."""
        if not self._cuts.requested():
            super().end(session)

    def act(self, session: Session, step: int) -> None:
        """Evaluates."""
        watch = self._watch
        on_batch = partial(watch.batch, session) if watch.sees_batches else None
        try:
            with self._averages.in_place(session) if self._averages else nullcontext():
                watch.begins(session)
                metrics = self._evaluation.evaluate(session, self._cuts.requested, on_batch)
                watch.ends(session, metrics)
        except EvaluationCutError:
            if self._cuts.record is not None:
                write_json(self._cuts.record, {"step": step})
            return
        step = present_step(session)
        self.latest = (step, metrics)
        self._on_result(session, metrics, step)
        if self._cuts.record is not None:
            self._cuts.record.unlink(missing_ok=True)
