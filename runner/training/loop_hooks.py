"""The hooks of a run's loop, in the order in which the session calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from runner.config.choices import NonFinite, OnError
from runner.config.instantiation import References
from runner.config.training_schema import EVALUATE_EVERY
from runner.errors import NonFiniteLossError, RunnerError
from runner.graph.configured_hooks import (
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
    Means,
    MetricsHook,
    NanLossHook,
    NanLossPolicy,
    ProgressHook,
    RewindHook,
    SavePolicy,
    StopAtStepHook,
    StopWhenHook,
)
from runner.hooks.callbacks import CallbacksHook, EpochCount, NamedCallback
from runner.hooks.checkpoint import another_saver, raise_error, warned
from runner.hooks.evaluation import EvaluationWatch
from runner.system.user_code import ERRORS, raised, staying
from runner.training.run import OpenedRun

# Preparing a second kind of step, with the metrics or without, takes 0.1 s of the processor for a
# tiny model and 0.3 s for `lstm_cnn`, more than the metrics of so many steps.
_ONE_KIND_UNTIL = 1000


class _NamedHook(tf.compat.v1.train.SessionRunHook):
    """A hook of the configuration, which remembers the error that it raised, and that it stopped.

    Errors pass through unchanged: a session recovers from some of them.
    """

    def __init__(self, key: str, hook: tf.compat.v1.train.SessionRunHook) -> None:
        self.key, self._hook = key, hook
        self.error: BaseException | None = None
        self.stopped = False

    def begin(self) -> None:
        self._call(self._hook.begin)

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        before = coord.should_stop()
        self._call(self._hook.after_create_session, session, coord)
        self.stopped |= coord.should_stop() and not before

    def before_run(self, run_context: Any) -> Any:
        return self._call(self._hook.before_run, run_context)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        before = run_context.stop_requested
        self._call(self._hook.after_run, run_context, run_values)
        self.stopped |= run_context.stop_requested and not before

    def end(self, session: tf.compat.v1.Session) -> None:
        self._call(self._hook.end, session)

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with staying():
                return method(*arguments)
        except ERRORS as error:
            self.error = error
            raise


class _StoppingCallback(NamedCallback):
    """A callback of the configuration, which remembers that it stopped the training."""

    stopped = False

    def call(self, method: str, *arguments: Any) -> None:
        before = self._stops()
        super().call(method, *arguments)
        self.stopped |= self._stops() and not before

    def _stops(self) -> bool:
        return bool(getattr(self.callback.model, "stop_training", False))


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
      callbacks: calls Keras callbacks; None where there are none.
    """

    named: Sequence[_NamedHook]
    evaluation: EvaluationHook
    best: BestCheckpoint
    saves: SavePolicy
    means: Means
    callbacks: CallbacksHook | None = None
    named_callbacks: Sequence[_StoppingCallback] = ()

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
        every = (*self.named_callbacks, *self.named)
        return next((hook.key for hook in every if hook.stopped), None)

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
        means = Means(run.training.values)
        evaluation = _evaluation(run, best, callbacks, means=means)
        references = _references(run, evaluation)
        named = [
            _NamedHook(f"hooks.{name}", HOOKS.build(name, node, references))
            for name, node in run.config.hooks.items()
        ]
    return ConfiguredHooks(named, evaluation, best, saves, means, callbacks, called)


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
    saved_input = (
        [InputStateHook(training.saved_input, run.screen.line)] if training.saved_input else []
    )
    return [
        *first,
        # First, so that nothing is recorded or saved of a step whose loss is NaN.
        _nan_loss(run),
        *saved_input,
        StopAtStepHook(config.train.steps),
        RewindHook(run.tracker.rewind, training.step, run.experiment.recorder.reach),
        _metrics(run, names["metrics"], progress, means=configured.means),
        # What an evaluation shows of an epoch is there when the epoch ends.
        *([callbacks] if callbacks else []),
        *([configured.evaluation] if run.built.evaluation.metrics else []),
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
            callbacks,
        ),
        *last,
        # Last, so that a signal during the other hooks' work costs no further step.
        StopWhenHook(lambda: run.interruption.received() or run.watch.pruned),
    ]


def _best_checkpoint(run: OpenedRun, saves: SavePolicy) -> BestCheckpoint:
    train = run.config.train
    return BestCheckpoint(
        run.built.saver,
        run.directory.best,
        run.directory.best_record,
        train.objective.removeprefix("validation/"),
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
    half = f"{rate / 2:g}" if isinstance(rate, float) else "..."
    remedy = "look at the data and the learning rate"
    if training.learning_rate is not None:
        remedy += f", for example with half of it: optimizer.learning_rate={half}"
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
    )


def _metrics(
    run: OpenedRun, values: Mapping[str, tf.Tensor], progress: ProgressHook, *, means: Means
) -> MetricsHook:
    training = run.training

    def record(values: Mapping[str, float], step: int) -> None:
        length = training.epoch_length
        epoch = {"epoch": float((step - 1) // length + 1)} if length else {}
        logged = {f"train/{name}": value for name, value in values.items()}
        run.tracker.log_metrics({**epoch, **logged}, step)
        progress.show({**epoch, **{name: values[name] for name in training.values}}, step)

    return MetricsHook(
        values,
        training.step,
        run.config.train.log_every,
        record,
        one_kind_until=_ONE_KIND_UNTIL if training.values_are_cheap else 0,
        means=means,
    )


def _evaluation(
    run: OpenedRun, best: BestCheckpoint, watch: EvaluationWatch | None, *, means: Means
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
        config.train.evaluate_every or EVALUATE_EVERY,
        record,
        training.averages if config.train.evaluate_ema else None,
        EvaluationCutoff(run.interruption.received, run.directory.evaluation_due),
        watch,
        objective=config.train.objective.removeprefix("validation/"),
        goal=config.train.direction,
    )


def _named_callbacks(run: OpenedRun) -> list[_StoppingCallback]:
    """Builds the callbacks of the configuration."""
    built, training = run.built, run.training
    if built.eager is None or training.epoch is None or training.epoch_length is None:
        return []
    names = {key: value for key, value in _run_names(run).items() if key in CALLBACKS.run_names}
    references = graph_references(built.graph, built.variables, training).also("run", names)
    named = []
    for name, node in run.config.callbacks.items():
        callback = _StoppingCallback(f"callbacks.{name}", CALLBACKS.build(name, node, references))
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
    built, training, length = run.built, run.training, run.training.epoch_length
    if not run.config.callbacks or built.eager is None or training.epoch is None or length is None:
        return None
    return CallbacksHook(
        named,
        built.eager(),
        training.epoch,
        step=training.step,
        epochs=EpochCount(length, -(-run.config.train.steps // length)),
        interrupted=lambda: run.interruption.received() or run.watch.pruned,
        report=run.screen.line,
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
