"""Builds the training step: learning rate, gradients, optimizer, moving averages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from runner.cluster.synchronous import Synchronization, SynchronousUpdate
from runner.config.choices import NonFinite
from runner.config.instantiation import References, build_target, locate_target
from runner.config.schema import RunConfig
from runner.config.validation import KEY, no_rate, rate_problems
from runner.errors import ConfigError, Problem
from runner.graph.averages import AveragedWeights
from runner.graph.experiment import Training
from runner.graph.input_pipeline import TrainingInput
from runner.graph.optimization import (
    Batch,
    Schedule,
    accumulate,
    apply_gradients,
    build_optimizers,
    clip,
    shared_state,
)
from runner.graph.precision import scaled_losses

# Maps a batch of features and labels to the values per example by metric name, and the penalty.
Forward: TypeAlias = Callable[[Any, Any], tuple[dict[str, tf.Tensor], tf.Tensor]]


class TrainingStep:
    """The training step in the making: first the forward pass, then what updates the variables."""

    def __init__(
        self,
        config: RunConfig,
        source: TrainingInput,
        forward: Forward,
        metrics: Sequence[str],
        global_step: tf.Variable,
        synchronization: Synchronization | None = None,
    ) -> None:
        """Adds the forward pass, by which the model makes its variables.

        With several batches to a step it is part of a loop that needs the variables; the model
        then makes them when it is called for evaluation.

        Args:
          config: the run's configuration.
          source: the training input.
          forward: the forward pass.
          metrics: the names of loss and metrics.
          global_step: the global step.
          synchronization: how workers update together; None where this process updates alone.
        """
        self._synchronization = synchronization
        self._config, self._source, self._forward = config, source, forward
        self._metrics, self._global_step = metrics, global_step
        self._one = self._means() if config.train.accumulate == 1 else None

    def build(self, schedules: Sequence[tuple[tf.Variable, Schedule]]) -> Training:
        """Returns the training step.

        Args:
          schedules: the variables to train, each with its schedule.

        Raises:
          ConfigError: when none are left, or the optimizer does not fit.
        """
        config = self._config
        if not schedules:
            raise ConfigError(
                Problem(
                    "no variable is left to train",
                    "every trainable variable belongs to a scaffold with `trainable: false`",
                    "set trainable: true for one of them",
                    tuple(config.scaffolds),
                )
            )
        variables = [variable for variable, _ in schedules]
        rate, scale = self._learning_rate()
        optimizers = scaled_losses(
            config, build_optimizers(config.optimizer, schedules, self._global_step, rate)
        )
        optimizer = next(iter(optimizers.values()))

        def one_batch() -> Batch:
            means, waited = self._one or self._means()
            return means, optimizer.compute_gradients(means["loss"], variables), waited

        updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(updates):
            means, gradients, waited = (
                one_batch()
                if self._one
                else accumulate(one_batch, self._metrics, variables, config.train.accumulate)
            )
            synchronous = None
            if self._synchronization is not None:
                synchronous = SynchronousUpdate(
                    optimizer,
                    gradients,
                    lambda averaged: clip(averaged, config.train.clip),
                    self._global_step,
                    self._synchronization,
                )
                train_op = synchronous.train_op
            else:
                train_op = apply_gradients(
                    optimizers, clip(gradients, config.train.clip), schedules, self._global_step
                )
        averages = None
        if config.train.ema_decay is not None:
            with tf.control_dependencies([train_op]):
                averages = AveragedWeights(variables, config.train.ema_decay, self._global_step)
            train_op = tf.group(train_op, averages.update)
        with tf.control_dependencies([train_op]):
            step = tf.identity(self._global_step.read_value())
        return Training(
            train_op,
            step,
            means,
            rate,
            scale,
            self._rollbacks(),
            averages,
            self._source.initializer,
            waited,
            self._source.state,
            config.train.save_input,
            shared_state(optimizers, schedules),
            synchronous,
        )

    def _means(self) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        (features, labels), waited = self._source.next()
        values, penalty = self._forward(features, labels)
        means = {name: tf.reduce_mean(value) for name, value in values.items()}
        means["loss"] += penalty
        return means, waited

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
