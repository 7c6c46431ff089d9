"""The hooks of a run's loop, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from runner.cluster.chief import Chief
from runner.config.choices import NonFinite, OnError
from runner.config.instantiation import References
from runner.config.schema import RunConfig
from runner.errors import NonFiniteLossError
from runner.graph.experiment import BuiltGraph, Training
from runner.graph.hook_targets import build_hook
from runner.graph.names import finder, graph_names
from runner.hooks import (
    BestCheckpoint,
    CheckpointHook,
    EvaluationHook,
    FiniteCheck,
    InputStateHook,
    MetricsHook,
    NanLossHook,
    ProgressHook,
    RewindHook,
    StopAtStepHook,
    StopWhenHook,
)
from runner.hooks.checkpoint import another_saver, non_finite_problem, raise_save_error, warned
from runner.runs.run_directory import RunDirectory
from runner.system.signals import Interruption
from runner.tracking import Tracker
from runner.training.context import RunContext


@dataclass(frozen=True)
class LoopHooks:
    """The hooks of a loop.

    Attributes:
      all: in the order in which the session calls them.
      best: keeps the best checkpoint.
      progress: one of them, to be closed also when the training fails.
    """

    all: Sequence[tf.compat.v1.train.SessionRunHook]
    best: BestCheckpoint
    progress: ProgressHook


def loop_hooks(
    context: RunContext,
    built: BuiltGraph,
    training: Training,
    directory: RunDirectory,
    tracker: Tracker,
    interruption: Interruption,
    leader: Chief | None = None,
) -> LoopHooks:
    """Makes the hooks of a run, in its graph.

    Args:
      context: what the command gave.
      built: the graph, not finalised.
      training: its training step.
      directory: the run's directory.
      tracker: records the run.
      interruption: tells of signals.
      leader: this process as the chief of a cluster; None where it trains alone.

    Raises:
      ConfigError: when a hook of the configuration does not fit.
    """
    config, screen, trial = context.config, context.screen, context.trial
    finite = FiniteCheck(built.variables)
    raises = config.checkpoint.on_error is OnError["raise"]
    save_failed = raise_save_error if raises else warned(screen.line)
    best = BestCheckpoint(
        built.saver,
        directory.best,
        directory.best_record,
        config.train.objective.removeprefix("validation/"),
        config.train.goal,
        finite,
        save_failed,
    )
    progress = ProgressHook(training.step, config.train.steps, screen)

    def record_training(values: Mapping[str, float], step: int) -> None:
        tracker.log_metrics({f"train/{name}": value for name, value in values.items()}, step)
        progress.show({name: values[name] for name in training.values}, step)

    def record_evaluation(
        session: tf.compat.v1.Session, values: Mapping[str, float], step: int
    ) -> None:
        tracker.log_metrics({f"validation/{name}": value for name, value in values.items()}, step)
        mark = "  (best so far)" if best.offer(session, values, step) else ""
        shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        screen.line(f"step {step}  validation  {shown}{mark}")
        if trial is not None:
            trial.evaluated(values, step)

    def refuse(names: Sequence[str], step: int) -> None:
        problem = non_finite_problem(names, step)
        if config.train.non_finite.action is NonFinite["raise"]:
            raise NonFiniteLossError(problem)
        screen.line(str(problem))

    cluster = config.cluster
    others_train = leader is not None and not cluster.synchronous and cluster.workers > 1
    names = graph_names(built.variables, training)
    evaluation = EvaluationHook(
        built.split,
        training.step,
        config.train.evaluate_every,
        record_evaluation,
        at_end=lambda: not interruption.received(),
        averages=training.averages if config.train.evaluate_ema else None,
        cut=interruption.received,
        due=directory.evaluation_due,
        others_train=others_train,
    )
    references = References(
        {"graph": names, "run": _run_names(built, directory, tracker, evaluation)},
        finder(built.graph),
    )
    first, last = leader.hooks(training, tracker.log_metrics, screen.line) if leader else ([], [])
    hooks = [
        *first,
        # First, so that nothing is recorded or saved of a step whose loss is NaN.
        NanLossHook(
            training.values["loss"],
            training.step,
            directory.checkpoints,
            "look at the data and the learning rate, for example with half of it: "
            f"optimizer.learning_rate={_half_rate(config)}",
            config.train.non_finite.action,
            config.train.non_finite.rollbacks,
            training.learning_rate_scale,
            config.train.non_finite.learning_rate_scale,
            screen.line,
            training.rollbacks,
        ),
        *([InputStateHook(training.input_state, screen.line)] if training.input_is_saved else []),
        StopAtStepHook(config.train.steps),
        RewindHook(tracker.rewind),
        MetricsHook(names["metrics"], training.step, config.train.log_every, record_training),
        evaluation,
        progress,
        *(
            built.hooks[name] or build_hook(name, node, references)
            for name, node in config.hooks.items()
        ),
        # After the others, so that what they record of a step is there when the step is saved:
        # a run that resumes from it never records it again.
        CheckpointHook(
            built.saver,
            directory.checkpoints,
            training.step,
            config.train.checkpoint_every,
            finite,
            refuse,
            save_failed,
            others_train=others_train,
        ),
        *last,
        # Last, so that a signal during the other hooks' work costs no further step.
        StopWhenHook(lambda: interruption.received() or (trial is not None and trial.pruned)),
    ]
    return LoopHooks(hooks, best, progress)


def _run_names(
    built: BuiltGraph, directory: RunDirectory, tracker: Tracker, evaluation: EvaluationHook
) -> dict[str, Any]:
    """Returns what `${run:NAME}` stands for, for each of `RUN_NAMES`."""
    return {
        "directory": str(directory.path),
        "checkpoints": str(directory.checkpoints),
        "evaluation": evaluation,
        "record": tracker.log_metrics,
        "saver": another_saver(built.saver, 0),
    }


def _half_rate(config: RunConfig) -> str:
    rate = config.optimizer.get("learning_rate")
    return f"{rate / 2:g}" if isinstance(rate, float) else "..."
