"""Builds the training step: learning rate, gradients, optimizer, moving averages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from runner.config.choices import NonFinite
from runner.config.instantiation import References, build_target, locate_target
from runner.config.schema import RunConfig
from runner.config.validation import KEY, no_rate, rate_problems
from runner.errors import ConfigError, Problem
from runner.graph.experiment import Training
from runner.graph.input_pipeline import TrainingInput
from runner.graph.optimization import (
    AveragedWeights,
    Batch,
    Gradients,
    Schedule,
    accumulate,
    apply_gradients,
    build_optimizers,
    clip,
    shared_state,
)
from runner.graph.precision import scaled_losses
from runner.graph.replica import Replica

# Maps a batch of features, labels and maybe weights to the loss and the metrics by name, scalars.
Forward: TypeAlias = Callable[..., dict[str, tf.Tensor]]


class TrainingStep:
    """Builds a training step in two phases: the forward pass, then what updates the variables."""

    def __init__(
        self,
        config: RunConfig,
        source: TrainingInput,
        forward: Forward,
        replica: Replica,
    ) -> None:
        """Adds the forward pass, by which the model makes its variables.

        With several batches to a step it is part of a loop that needs the variables; the model
        then makes them when it is called for evaluation.

        Args:
          config: the run's configuration.
          source: the training input.
          forward: the forward pass.
          replica: the copy of the graph that this step belongs to.
        """
        self._replica = replica
        self._config, self._source, self._forward = config, source, forward
        self._global_step = tf.compat.v1.train.get_or_create_global_step()
        self._one = self._means() if config.train.accumulate == 1 else None

    def build(
        self, schedules: Sequence[tuple[tf.Variable, Schedule]], metrics: Sequence[str]
    ) -> Training:
        """Returns the training step.

        Args:
          schedules: the variables to train, each with its schedule.
          metrics: the names of loss and metrics.

        Raises:
          ConfigError: when none are left, or the optimizer does not fit.
        """
        config, global_step = self._config, self._global_step
        if not schedules:
            raise ConfigError(
                Problem(
                    "no variable is left to train",
                    "every trainable variable belongs to a scaffold with `trainable: false`",
                    "set trainable: true for one of them",
                    tuple(config.scaffolds),
                )
            )
        rate, scale = self._learning_rate()
        built = build_optimizers(config.optimizer, schedules, global_step, rate)
        optimizers = scaled_losses(config, built)
        (means, waited), train_op = self._update(optimizers, schedules, metrics)
        averages = self._averages(schedules, train_op)
        if averages is not None:
            train_op = tf.group(train_op, averages.update)
        with tf.control_dependencies([train_op]):
            step = tf.identity(global_step.read_value())
        return Training(
            train_op=train_op,
            step=step,
            values=means,
            learning_rate=rate,
            learning_rate_scale=scale,
            rollbacks=self._rollbacks(),
            averages=averages,
            input_initializer=self._source.initializer,
            input_seconds=waited,
            input_state=self._source.state,
            input_is_saved=config.train.save_input,
            shared_state=shared_state(optimizers, schedules),
        )

    def _averages(
        self, schedules: Sequence[tuple[tf.Variable, Schedule]], train_op: tf.Operation
    ) -> AveragedWeights | None:
        decay = self._config.train.ema_decay
        if decay is None:
            return None
        with tf.control_dependencies([train_op]):
            return AveragedWeights([each for each, _ in schedules], decay, self._global_step)

    def _update(
        self,
        optimizers: Mapping[Schedule, tf.compat.v1.train.Optimizer],
        schedules: Sequence[tuple[tf.Variable, Schedule]],
        metrics: Sequence[str],
    ) -> tuple[tuple[dict[str, tf.Tensor], tf.Tensor], tf.Operation]:
        """Returns the step's metrics and its wait for input, and the operation that updates."""
        config = self._config
        variables = [variable for variable, _ in schedules]
        optimizer = next(iter(optimizers.values()))

        def one_batch() -> Batch:
            means, waited = self._one or self._means()
            return means, optimizer.compute_gradients(means["loss"], variables), waited

        def clipped(gradients: Gradients) -> Gradients:
            return clip(gradients, config.train.clip)

        updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(updates):
            means, gradients, waited = (
                one_batch()
                if self._one
                else accumulate(one_batch, metrics, variables, config.train.accumulate)
            )
            train_op = self._replica.shared_update(
                optimizer, gradients, clipped, self._global_step
            ) or apply_gradients(optimizers, clipped(gradients), schedules, self._global_step)
        return (means, waited), train_op

    def _means(self) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        batch, waited = self._source.next()
        return self._forward(*batch), waited

    def _rollbacks(self) -> tf.Variable | None:
        """Returns the count that checkpoints keep, so that a resumed run counts on."""
        if self._config.train.non_finite.action is not NonFinite["rollback"]:
            return None
        return tf.compat.v1.get_variable("rollbacks", initializer=0, trainable=False)

    def _learning_rate(self) -> tuple[tf.Tensor | None, tf.Variable | None]:
        rate = learning_rate(self._config.optimizer, self._global_step.read_value())
        if rate is None or self._config.train.non_finite.action is not NonFinite["rollback"]:
            return rate, None
        scale = tf.compat.v1.get_variable("learning_rate_scale", initializer=1.0, trainable=False)
        return rate * scale, scale


def learning_rate(optimizer: Mapping[str, Any], global_step: tf.Tensor) -> tf.Tensor | None:
    """Returns the learning rate, a float32 scalar; None when the optimizer's target takes none.

    Args:
      optimizer: the optimizer's configuration. Its `learning_rate`, by default that of the target,
        is a number; or the `_target_` of a schedule: a class of `keras.optimizers.schedules`, any
        callable of the step, or a `tf.compat.v1.train` function such as `exponential_decay` with
        `global_step: ${graph:global_step}`.
      global_step: the global step before the train op has run.

    Raises:
      ConfigError: when it is neither, or a target does not fit.
    """
    problems = rate_problems(optimizer)
    if problems:
        raise ConfigError(*problems)
    rate = node = optimizer.get("learning_rate", _default_rate(optimizer))
    if node is None:
        return None
    if isinstance(node, Mapping):
        rate = build_target(KEY, node, References({"graph": {"global_step": global_step}}))
        if callable(rate):
            rate = rate(global_step)
    try:
        return tf.convert_to_tensor(rate, tf.float32, name="learning_rate")
    except (TypeError, ValueError) as error:
        raise ConfigError(no_rate(node)) from error


def _default_rate(optimizer: Mapping[str, Any]) -> Any:
    """Returns the default of the target's `learning_rate`; None when it has none."""
    target = locate_target("optimizer", optimizer)
    parameter = inspect.signature(target).parameters.get("learning_rate")
    if parameter is None or parameter.default is inspect.Parameter.empty:
        return None
    return parameter.default
