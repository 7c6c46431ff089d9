"""Evaluates a split in the training session, without changing the state of training."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from runner.config.schedule import When
from runner.errors import ConfigError, Problem
from runner.graph.experiment import Split
from runner.graph.graph_spec import EvaluationGraph
from runner.graph.optimization import AveragedWeights
from runner.hooks.scheduled import ScheduledHook, Session, present_step
from runner.session.monitored_session import ChiefSessionCreator, MonitoredSession
from runner.session.session_manager import PLACED_SOFTLY
from runner.system.atomic_files import write_json

# Takes the session, metric name -> value, and the global step.
OnResult = Callable[[Session, Mapping[str, float], int], None]


class EvaluationCutError(Exception):
    """An evaluation was cut short."""


def evaluate(
    session: Session, split: Split | EvaluationGraph, cut: Callable[[], bool] = lambda: False
) -> dict[str, float]:
    """Returns each metric over one pass of the split: means are summed in float64.

    Args:
      session: holds the weights.
      split: what to evaluate.
      cut: called after each batch; True ends the evaluation without a result.

    Raises:
      EvaluationCutError: when `cut` returned True.
      ConfigError: when the split holds no example, or repeats forever.
    """
    if isinstance(split, EvaluationGraph):
        return _evaluate_graph(session, split, cut)
    if split.cardinality is None:
        session.run(split.initializer)
    else:
        _require_end(split.name, session.run((split.initializer, split.cardinality))[1])
    sums = dict.fromkeys(split.sums, 0.0)
    counts = dict.fromkeys(split.counts, 0.0)
    while True:
        try:
            batch_sums, batch_counts = session.run((dict(split.sums), dict(split.counts)))
        except tf.errors.OutOfRangeError:
            break
        if cut():
            raise EvaluationCutError
        for name in sums:
            sums[name] += float(batch_sums[name])
            counts[name] += float(batch_counts[name])
    if not all(counts.values()):
        raise ConfigError(Problem(f"data.{split.name}() gives no example to evaluate"))
    means = {name: sums[name] / counts[name] for name in sums}
    if not split.results:
        return means
    results = session.run(dict(split.results))
    return means | {name: float(value) for name, value in results.items()}


def _require_end(split: str, cardinality: int) -> None:
    """Raises where a pass over a split would never end, or may not."""
    endless = cardinality == tf.data.INFINITE_CARDINALITY
    if split == "train" and cardinality < 0:
        raise ConfigError(
            Problem(
                f"data.train() repeats forever{'' if endless else ', as far as is known'}",
                "an evaluation is one pass over a split, and the size of this one is not known",
                "give the data a method sizes() that returns {'train': COUNT, ...}",
            )
        )
    if endless:
        raise ConfigError(
            Problem(
                f"the data of the {split} split repeats forever",
                "an evaluation is one pass over a split",
                "leave out .repeat(), or end it with .take(COUNT)",
            )
        )


def _evaluate_graph(
    session: Session, evaluation: EvaluationGraph, cut: Callable[[], bool]
) -> dict[str, float]:
    """Evaluates what a session holds in a second session, by way of a temporary checkpoint."""
    evaluated = evaluation if evaluation.anew is None else evaluation.anew()
    with tempfile.TemporaryDirectory(prefix="evaluation-") as folder:
        path = evaluation.transfer.save(
            session,
            str(Path(folder, "model.ckpt")),
            write_meta_graph=False,
            write_state=False,
        )
        values = evaluate_checkpoint(evaluated, path, cut)
    # The saver would delete the files that it remembers, which are gone.
    evaluation.transfer.set_last_checkpoints_with_time([])
    return {name: float(value) for name, value in values.items()}


def evaluate_checkpoint(
    evaluation: EvaluationGraph,
    checkpoint: str | None,
    cut: Callable[[], bool] = lambda: False,
    config: tf.compat.v1.ConfigProto = PLACED_SOFTLY,
) -> dict[str, Any]:
    """Returns the metrics of a checkpoint, evaluated in a new session.

    Args:
      evaluation: what to evaluate.
      checkpoint: its path; None evaluates the initial values.
      cut: called after each batch; True ends the evaluation without a result.
      config: of the session, by default with soft placement.

    Raises:
      EvaluationCutError: when `cut` returned True.
      ConfigError: when the input holds no batch, or repeats forever.
    """
    final = tf.compat.v1.train.FinalOpsHook(dict(evaluation.values))
    batches = 0
    with evaluation.graph.as_default():
        creator = ChiefSessionCreator(
            evaluation.scaffold, config=config, checkpoint_filename_with_path=checkpoint
        )
        explaining = evaluation.calls.explaining() if evaluation.calls else nullcontext()
        with explaining, MonitoredSession(creator, [*evaluation.hooks, final]) as session:
            if evaluation.cardinality is not None:
                # Hooks do not take it for a step.
                count = session.run_step_fn(
                    lambda step_context: step_context.session.run(evaluation.cardinality)
                )
                _require_end(evaluation.name, count)
            while not session.should_stop():
                session.run(evaluation.update)
                batches += 1
                if cut():
                    raise EvaluationCutError
                if evaluation.once:
                    break
    if batches == 0:
        raise ConfigError(
            Problem(f"the input of mode {evaluation.name} holds no batch to evaluate")
        )
    return dict(final.final_ops_values)


@dataclass(frozen=True)
class EvaluationCutoff:
    """When an evaluation is cut short.

    Attributes:
      requested: called after each batch, where True cuts the evaluation short, and at the end of
        training, where True leaves it out. By default neither happens.
      record: the file that records a cut evaluation; with None, the default, it is not repeated.
    """

    requested: Callable[[], bool] = lambda: False
    record: Path | None = None


class EvaluationHook(ScheduledHook):
    """Evaluates on a schedule and at the end.

    An evaluation that is cut short, as by a signal, is repeated by the session that resumes from
    that step or a later one, before its first step. A result counts for the step at which it is
    complete: other workers may train meanwhile.

    Args:
      split: what to evaluate.
      step: the global step after the train op has run.
      every: the schedule.
      on_result: takes the session, the metrics and the step.
      averages: evaluated in place of the weights; None, the default, evaluates the weights.
      cuts: when an evaluation is cut short, by default never.

    Attributes:
      metrics: the names of the metrics.
      latest: the step and the metrics of the newest evaluation; None before the first.
    """

    latest: tuple[int, Mapping[str, float]] | None = None

    def __init__(
        self,
        split: Split | EvaluationGraph,
        step: tf.Tensor,
        every: When,
        on_result: OnResult = lambda session, metrics, step: None,
        averages: AveragedWeights | None = None,
        cuts: EvaluationCutoff | None = None,
    ) -> None:
        super().__init__(step, every, at_end=True)
        self.metrics = split.names
        self._split, self._on_result, self._averages = split, on_result, averages
        self._cuts = cuts or EvaluationCutoff()

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

    def end(self, session: Session) -> None:
        """Evaluates the last step, unless that is done or a cut is requested."""
        if not self._cuts.requested():
            super().end(session)

    def act(self, session: Session, step: int) -> None:
        """Evaluates."""
        try:
            with self._averages.in_place(session) if self._averages else nullcontext():
                metrics = evaluate(session, self._split, self._cuts.requested)
        except EvaluationCutError:
            if self._cuts.record is not None:
                write_json(self._cuts.record, {"step": step})
            return
        step = present_step(session)
        self.latest = (step, metrics)
        self._on_result(session, metrics, step)
        if self._cuts.record is not None:
            self._cuts.record.unlink(missing_ok=True)
