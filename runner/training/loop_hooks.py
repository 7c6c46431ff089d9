"""The hooks of a run's loop, in the order in which the session calls them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from runner.config.choices import NonFinite, OnError
from runner.config.instantiation import GIVEN, References
from runner.config.schedule import NEVER
from runner.config.training_schema import metric_of
from runner.errors import NonFiniteLossError, RunnerError
from runner.graph.hook_entries import (
    CALLBACKS,
    HOOKS,
    graph_names,
    graph_references,
)
from runner.hooks import (
    BestCheckpoint,
    CheckpointHook,
    EvaluationCutoff,
    EvaluationHook,
    FiniteCheck,
    InputStateHook,
    MetricsHook,
    NanLossHook,
    NanLossPolicy,
    ProgressHook,
    RewindHook,
    SavePolicy,
    StopAtStepHook,
    StopWhenHook,
)
from runner.hooks.callbacks import CallbacksHook, NamedCallback
from runner.hooks.checkpoint import another_saver, raise_error, warned
from runner.hooks.evaluation_hook import EvaluationWatch
from runner.hooks.final_weights import FinalWeights, HandOver
from runner.hooks.metrics import TrainingMeans
from runner.system.user_code import ERRORS, raised
from runner.tracking.journal import history
from runner.tracking.tracking_directory import TrackingDirectory
from runner.training.experiment import OpenedRun
from runner.training.named_hooks import NamedHook, StoppingCallback

# Preparing a second kind of step, with the metrics or without, takes 0.1 s of the processor for a
# tiny model and 0.3 s for `lstm_cnn`, more than the metrics of so many steps.
_ONE_KIND_UNTIL = 5000


# Begins the names of metrics that `fit` reports of an epoch, among the metrics of a step.
_OF_EPOCH = "epoch/"


@dataclass(frozen=True)
class ConfiguredHooks:
    """The hooks of the configuration, and the objects that they may refer to.

    Attributes:
      named: the hooks, in the configuration's order.
      named_callbacks: the callbacks, in theirs.
      evaluation: evaluates the validation split.
      best: keeps the best checkpoint.
      saves: which values are saved, and how to react when a save fails.
      means: averages training metrics between evaluations.
      final: leaves the weights that the training ends with.
      callbacks: calls Keras callbacks; None where there are none.
    """

    named: Sequence[NamedHook]
    evaluation: EvaluationHook
    best: BestCheckpoint
    saves: SavePolicy
    means: TrainingMeans
    final: FinalWeights
    callbacks: CallbacksHook | None = None
    named_callbacks: Sequence[StoppingCallback] = ()

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Reports errors of a hook of the configuration with the name of that hook.

        Raises:
          UserCodeError: in place of any other error than a `RunnerError`.
        """
        try:
            yield
        except RunnerError:
            raise
        except ERRORS as error:
            place = self.place_of(error)
            if place is None:
                raise
            raise raised(place, error) from error

    def stopper(self) -> str | None:
        """Returns the key of the hook or callback that stopped the training; None for none."""
        stopped = [callback.key for callback in self.named_callbacks if callback.stopped]
        stopped += [hook.key for hook in self.named if hook.stopped]
        return stopped[0] if stopped else None

    def place_of(self, error: BaseException) -> str | None:
        """Returns the key of the hook that raised an error, e.g. `hooks.log`; None for no hook."""
        return next((hook.key for hook in self.named if hook.error is error), None)


def configured_hooks(run: OpenedRun) -> ConfiguredHooks:
    """Builds the hooks of the configuration, in the graph of a run.

    Args:
      run: the run, opened; `${run:record}` works once it is recorded.

    Raises:
      ConfigError: when a hook does not fit, or refuses its arguments.
      UserCodeError: when its constructor raises another error.
    """
    called = _named_callbacks(run)  # Built outside of the graph.
    callbacks = _callbacks(run, called)
    with run.built.graph.as_default():
        saves = _save_policy(run)
        best = _best_checkpoint(run, saves)
        # Over an epoch, the values are means already, as in `fit`.
        means = TrainingMeans(
            () if run.training.epochs else run.training.values,
            partial(history, TrackingDirectory(run.directory.path).journal),
        )
        evaluation = _evaluation(run, best, callbacks, means=means)
        references = _references(run, evaluation)
        named = [
            NamedHook(f"hooks.{name}", HOOKS.build(name, node, references))
            for name, node in run.config.hooks.items()
        ]
    averages = run.training.averages
    final = FinalWeights(
        averages if averages is not None and averages.are_final else None,
        run.built.model,
        callbacks,
        interrupted=lambda: run.interruption.received() or run.watch.pruned,
        in_model=run.config.model.get("_target_") == GIVEN,
    )
    return ConfiguredHooks(named, evaluation, best, saves, means, final, callbacks, called)


def loop_hooks(
    run: OpenedRun, configured: ConfiguredHooks, progress: ProgressHook
) -> list[tf.compat.v1.train.SessionRunHook]:
    """Returns the hooks of a run, built in its graph, in the order in which the session calls them.

    Args:
      run: the run, opened and recorded.
      configured: the hooks of the configuration.
      progress: shows the run's metrics.
    """
    config, training, callbacks = run.config, run.training, configured.callbacks
    names = graph_names(run.built.variables, training)
    first, last = run.coordinator.hooks(run)

    def rewind(step: int) -> None:
        run.tracker.rewind(step)
        configured.means.rewind(step)

    saved_input = (
        [InputStateHook(training.saved_input, run.screen.line)] if training.saved_input else []
    )
    return [
        *first,
        # First, so that nothing is recorded or saved of a step whose loss is NaN.
        _nan_loss(run),
        *saved_input,
        StopAtStepHook(config.train.steps),
        RewindHook(rewind, training.step, run.experiment.recorder.reach),
        _metrics(run, names["metrics"], progress, means=configured.means),
        # What an evaluation shows of an epoch is there when the epoch ends.
        *([callbacks] if callbacks else []),
        *([configured.evaluation] if _evaluates(run) else []),
        configured.final,
        *([callbacks.epoch_ends] if callbacks else []),
        progress,
        *configured.named,
        *_of_the_graph(run),
        # After the others, so that what they record of a step is there when the step is saved:
        # a run that resumes from it never records it again.
        CheckpointHook(
            run.built.saver,
            run.directory.checkpoints,
            training.step,
            config.train.checkpoint_every,
            configured.saves,
            configured.final,
        ),
        HandOver(configured.final),
        *last,
        # Last, so that a signal during the other hooks' work costs no further step.
        StopWhenHook(lambda: run.interruption.received() or run.watch.pruned),
    ]


def _evaluates(run: OpenedRun) -> bool:
    return bool(run.built.evaluation.metrics) and run.config.train.evaluate_every != NEVER


def _best_checkpoint(run: OpenedRun, saves: SavePolicy) -> BestCheckpoint:
    train = run.config.train
    return BestCheckpoint(
        run.built.saver,
        run.directory.best,
        run.directory.best_record,
        metric_of(train.objective),
        train.direction,
        saves,
    )


def _save_policy(run: OpenedRun) -> SavePolicy:
    def warn(error: NonFiniteLossError) -> None:
        run.screen.line(str(error))

    return SavePolicy(
        FiniteCheck(run.built.variables),
        raise_error if run.config.train.non_finite.action is NonFinite["raise"] else warn,
        raise_error
        if run.config.checkpoint.on_error is OnError["raise"]
        else warned(run.screen.line),
    )


def _nan_loss(run: OpenedRun) -> NanLossHook:
    policy, training = run.config.train.non_finite, run.training
    rate = run.config.optimizer.get("learning_rate")
    remedy = "look at the data and the learning rate"
    if training.learning_rate is not None and isinstance(rate, float):
        remedy += f", for example with half of it: optimizer.learning_rate={rate / 2:g}"
    return NanLossHook(
        training.loss,
        training.step,
        run.directory.checkpoints,
        remedy,
        NanLossPolicy(
            policy.action,
            policy.rollbacks,
            training.learning_rate_scale,
            policy.learning_rate_scale,
            training.rollbacks,
        ),
        run.screen.line,
        partial(run.coordinator.share_values, run),
    )


def _metrics(
    run: OpenedRun, values: Mapping[str, tf.Tensor], progress: ProgressHook, *, means: TrainingMeans
) -> MetricsHook:
    training, epochs = run.training, run.training.epochs

    of_epoch = {f"{_OF_EPOCH}{name}": value for name, value in training.epoch_values.items()}
    if all(training.values[name] is value for name, value in training.epoch_values.items()):
        of_epoch = {}

    def record(fetched: Mapping[str, float], step: int) -> None:
        values = {name: value for name, value in fetched.items() if name not in of_epoch}
        if epochs and epochs.place(step) == 0:
            values |= {name.removeprefix(_OF_EPOCH): fetched[name] for name in of_epoch}
        epoch = {"epoch": float(epochs.done(step - 1) + 1)} if epochs else {}
        logged = {f"train/{name}": value for name, value in values.items()}
        run.tracker.log_metrics({**epoch, **logged}, step)
        means.add(values)
        shown = sorted(training.values, key=lambda name: name != "loss")  # It is first.
        progress.show({**epoch, **{name: values[name] for name in shown}}, step)

    return MetricsHook(
        {**values, **of_epoch},
        training.step,
        run.config.train.log_every,
        record,
        one_kind_until=_ONE_KIND_UNTIL if training.values_are_cheap else 0,
    )


def _evaluation(
    run: OpenedRun, best: BestCheckpoint, watch: EvaluationWatch | None, *, means: TrainingMeans
) -> EvaluationHook:
    config, training = run.config, run.training

    def record(session: tf.compat.v1.Session, values: Mapping[str, float], step: int) -> None:
        logged = {f"validation/{name}": value for name, value in values.items()}
        averaged = {f"train_mean/{name}": value for name, value in means.take().items()}
        run.tracker.log_metrics(logged | averaged, step)
        mark = "  (best so far)" if best.offer(session, values, step) else ""
        shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        run.screen.line(f"step {step}  validation  {shown}{mark}")
        run.watch.evaluated(values, step)

    return EvaluationHook(
        run.built.evaluation,
        training.step,
        (config.train.evaluate_every if _evaluates(run) else None) or "end",
        record,
        training.averages if config.train.evaluates_averages else None,
        EvaluationCutoff(run.interruption.received, run.directory.evaluation_due),
        watch,
        objective=metric_of(config.train.objective),
        goal=config.train.direction,
    )


def _named_callbacks(run: OpenedRun) -> list[StoppingCallback]:
    """Builds the callbacks of the configuration."""
    built, training = run.built, run.training
    if built.model is None or training.callback_state is None:
        return []
    names = {key: value for key, value in _run_names(run).items() if key in CALLBACKS.run_names}
    references = graph_references(built.graph, built.variables, training).also("run", names)
    named = []
    for name, node in run.config.callbacks.items():
        callback = StoppingCallback(f"callbacks.{name}", CALLBACKS.build(name, node, references))
        if isinstance(callback.callback, keras.callbacks.BackupAndRestore):
            run.screen.line(
                f"{callback.key}: not called, because a run saves and resumes by itself, exactly "
                "(train.checkpoint_every)"
            )
        else:
            named.append(callback)
    return named


def _callbacks(run: OpenedRun, named: Sequence[NamedCallback]) -> CallbacksHook | None:
    """Returns what calls the callbacks, and builds the model that they see."""
    built, training, epochs = run.built, run.training, run.training.epochs
    saved = training.callback_state
    if saved is None or built.model is None or epochs is None:
        return None

    def record(metrics: Mapping[str, float], added: Mapping[str, float], step: int) -> None:
        values = {f"train/{name}": value for name, value in metrics.items()}
        values |= {f"callbacks/{name}": value for name, value in added.items()}
        if values:
            run.tracker.log_metrics({"epoch": float(epochs.done(step - 1) + 1), **values}, step)

    return CallbacksHook(
        named,
        built.model,
        training.values,
        training.epoch_values or training.values,
        saved,
        step=training.step,
        epochs=epochs,
        last_epoch=epochs.done(run.config.train.steps - 1) + 1,
        interrupted=lambda: run.interruption.received() or run.watch.pruned,
        report=run.screen.line,
        changed=partial(run.coordinator.share_values, run),
        record=record,
    )


def _of_the_graph(run: OpenedRun) -> list[tf.compat.v1.train.SessionRunHook]:
    """Returns the hooks that come with the graph, and one that writes its summaries."""
    built = run.built
    hooks = [*built.chief_hooks, *built.graph_hooks]
    if built.summary_op is not None:
        folder = str(run.directory.path / "tensorboard")
        hooks.append(
            tf.compat.v1.train.SummarySaverHook(100, output_dir=folder, summary_op=built.summary_op)
        )
    return hooks


def _references(run: OpenedRun, evaluation: EvaluationHook) -> References:
    """Returns the objects that `${graph:NAME}` and `${run:NAME}` stand for."""
    saver = another_saver(run.built.saver, 0)
    references = graph_references(run.built.graph, run.built.variables, run.training)
    return references.also("run", {**_run_names(run), "evaluation": evaluation, "saver": saver})


def _run_names(run: OpenedRun) -> dict[str, Any]:
    def record(metrics: Mapping[str, float], step: int) -> None:
        run.tracker.log_metrics(metrics, step)

    return {
        "directory": str(run.directory.path),
        "checkpoints": str(run.directory.checkpoints),
        "record": record,
    }
