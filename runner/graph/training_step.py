"""Builds the training step: learning rate, gradients, optimizer, moving averages."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import tensorflow as tf

from runner.config.choices import NonFinite
from runner.config.instantiation import References, build_target, locate_target
from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.graph.built_graph import Training
from runner.graph.devices import Devices
from runner.graph.epochs import RATE
from runner.graph.experiment import Model
from runner.graph.input_pipeline import TrainingInput
from runner.graph.keras_optimizer import KerasOptimizer
from runner.graph.optimization import (
    AveragedWeights,
    Batch,
    Schedule,
    accumulate,
    apply_gradients,
    average_weights,
    build_optimizers,
    clip,
    shared_state,
)
from runner.graph.precision import is_compiled, scaled_losses
from runner.graph.replica import Replica
from runner.restoration.model_variables import keras_variables
from runner.system.user_code import calling

# A tf.function that maps a batch to the loss and the metrics by name, scalars.
Forward: TypeAlias = Any

_RATE_KEY = "optimizer.learning_rate"


class TrainingStep:
    """Builds a training step in two phases: the forward pass, then the update of the variables."""

    def __init__(
        self,
        config: RunConfig,
        source: TrainingInput,
        forward: Forward,
        *,
        replica: Replica,
        devices: Devices,
    ) -> None:
        """Adds the forward pass, in which the model creates its variables.

        With several batches to a step the forward pass is part of a loop that needs the variables,
        and with `model.jit_compile` XLA compiles it together with the gradient, which with several
        devices is placed beside it. The model then creates its variables when it is called for
        evaluation.
        """
        self._replica, self._devices = replica, devices
        self._config, self._source, self._forward = config, source, forward
        self._global_step = tf.compat.v1.train.get_or_create_global_step()
        self._in_one_function = is_compiled(config) or devices.several
        later = self._in_one_function or config.train.accumulate > 1
        self._one = None if later else self._next_means()

    def build(
        self,
        schedules: Sequence[tuple[tf.Variable, Schedule]],
        metrics: Sequence[str],
        model: Model,
    ) -> Training:
        """Returns the training step; `metrics` are the names of loss and metrics.

        Raises:
          ConfigError: when no variable is left to train, or the optimizer does not fit.
        """
        config, global_step = self._config, self._global_step
        if not schedules:
            raise ConfigError.of(
                "no variable is left to train",
                "all belong to layers with `trainable = False` or scaffolds with "
                "`trainable: false`",
                "let one of them train",
                tuple(config.scaffolds),
            )
        rate, scale = self._learning_rate()
        weights = {weight.value.ref(): weight for weight in keras_variables(model).values()}
        built = build_optimizers(
            config.optimizer, schedules, global_step, rate=rate, weights=weights
        )
        optimizers = scaled_losses(config, built)
        (means, waited), train_op = self._update(optimizers, schedules, metrics)
        keras_optimizers = [
            optimizer for optimizer in built.values() if isinstance(optimizer, KerasOptimizer)
        ]
        averages, train_op = self._averages(keras_optimizers, schedules, train_op)
        with tf.control_dependencies([train_op]):
            step = tf.identity(global_step.read_value())
        return Training(
            train_op=train_op,
            step=step,
            values=means,
            learning_rate=rate,
            learning_rate_scale=scale,
            rollbacks=rollback_count(config),
            averages=averages,
            epoch_length=self._source.epoch_length,
            input_initializer=self._source.initializer,
            input_seconds=waited,
            input_name="data.train()",
            saved_input=self._source.state if config.train.save_input else None,
            shared_state=shared_state(optimizers, schedules),
            state_names=dict(
                chain.from_iterable(optimizer.names.items() for optimizer in keras_optimizers)
            ),
            values_are_cheap=True,
        )

    def _averages(
        self,
        optimizers: Sequence[KerasOptimizer],
        schedules: Sequence[tuple[tf.Variable, Schedule]],
        train_op: tf.Operation,
    ) -> tuple[AveragedWeights | None, tf.Operation]:
        """Returns the moving averages of the weights, and a train op that updates them too."""
        pairs = [pair for optimizer in optimizers for pair in optimizer.averages]
        decay = self._config.train.ema_decay
        if decay is None:
            return AveragedWeights(pairs) if pairs else None, train_op
        if pairs:
            raise ConfigError.of(
                "train.ema_decay is set, and optimizer.use_ema is true",
                "both keep moving averages of the weights, and evaluation reads one of them",
                "delete one of the two",
            )
        variables = [variable for variable, _ in schedules]
        with tf.control_dependencies([train_op]):
            averages, update = average_weights(variables, decay, self._global_step)
        return averages, tf.group(train_op, update)

    def _update(
        self,
        optimizers: Mapping[Schedule, tf.compat.v1.train.Optimizer],
        schedules: Sequence[tuple[tf.Variable, Schedule]],
        metrics: Sequence[str],
    ) -> tuple[tuple[dict[str, tf.Tensor], tf.Tensor], tf.Operation]:
        """Returns the step's metrics and its wait for input, and the update operation."""
        config = self._config
        variables = [variable for variable, _ in schedules]
        optimizer = next(iter(optimizers.values()))

        def differentiated(batch: Any) -> tuple[dict[str, tf.Tensor], list[Any]]:
            means = self._means(batch)
            # Each device differentiates what it has computed.
            options = {"colocate_gradients_with_ops": True} if self._devices.several else {}
            pairs = optimizer.compute_gradients(means["loss"], variables, **options)
            return means, [gradient for gradient, _ in pairs]

        def one_batch() -> Batch:
            if self._in_one_function:
                # Separately compiled, a recurrent layer's forward pass would have to hand the
                # gradient TensorLists, which XLA cannot.
                batch, waited = self._devices.next_batch(self._source)
                compiled = is_compiled(config) or None
                function = tf.function(differentiated, autograph=False, jit_compile=compiled)
                means, gradients = function(batch)
                return means, list(zip(gradients, variables, strict=True)), waited
            means, waited = self._one or self._next_means()
            with calling("the gradient of the loss"):
                gradients = optimizer.compute_gradients(means["loss"], variables)
            return means, gradients, waited

        updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(updates):
            means, gradients, waited = (
                one_batch()
                if config.train.accumulate == 1
                else accumulate(one_batch, metrics, variables, count=config.train.accumulate)
            )
            means, gradients = self._replica.combined(means, gradients)
            with calling("optimizer"):
                gradients, step = clip(gradients, config.train.clip), self._global_step
                train_op = apply_gradients(optimizers, gradients, schedules, global_step=step)
        return (means, waited), train_op

    def _next_means(self) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        batch, waited = self._source.next()
        return self._means(batch), waited

    def _means(self, batch: Any) -> dict[str, tf.Tensor]:
        """Returns the metrics of this copy's part of a batch, times its weight."""
        part, weight = self._replica.share(batch)
        # The gradient of a function within another is in a third, which ignores devices.
        several = self._devices.several
        forward = self._forward.python_function if several else self._forward
        means: dict[str, tf.Tensor] = forward(part)
        if weight is None:
            return means
        return {name: value * tf.cast(weight, value.dtype) for name, value in means.items()}

    def _learning_rate(self) -> tuple[tf.Tensor | None, tf.Variable | None]:
        rate = learning_rate(self._config.optimizer, self._global_step.read_value())
        constant = not isinstance(self._config.optimizer.get("learning_rate"), Mapping)
        if rate is not None and constant and self._config.callbacks:
            # Callbacks may change it.
            variable = tf.compat.v1.get_variable(RATE, initializer=rate, trainable=False)
            rate = variable.read_value()
        if rate is None or self._config.train.non_finite.action is not NonFinite["rollback"]:
            return rate, None
        scale = tf.compat.v1.get_variable("learning_rate_scale", initializer=1.0, trainable=False)
        return rate * scale, scale


def rollback_count(config: RunConfig) -> tf.Variable | None:
    """Returns the variable that counts rollbacks, also across resumed runs."""
    if config.train.non_finite.action is not NonFinite["rollback"]:
        return None
    return tf.compat.v1.get_variable("rollbacks", initializer=0, trainable=False)


def learning_rate(optimizer: Mapping[str, Any], global_step: tf.Tensor) -> tf.Tensor | None:
    """Returns the learning rate, a float32 scalar; None when the optimizer's target takes none.

    Args:
      optimizer: the optimizer's configuration. Its `learning_rate`, by default the target's own, is
        a number or the `_target_` of a schedule: a class of `keras.optimizers.schedules`, any
        callable of the step, or a `tf.compat.v1.train` function such as `exponential_decay` with
        `global_step: ${graph:global_step}`.
      global_step: the global step before the train op has run.

    Raises:
      ConfigError: when it is neither, or a target does not fit.
    """
    rate = node = optimizer.get("learning_rate", _default_rate(optimizer))
    if node is None:
        return None
    if isinstance(node, Mapping) and "_target_" in node:
        rate = build_target(_RATE_KEY, node, References({"graph": {"global_step": global_step}}))
        if callable(rate):
            with calling(_RATE_KEY):
                rate = rate(global_step)
    try:
        if isinstance(rate, bool | list):
            raise TypeError
        return tf.convert_to_tensor(rate, tf.float32, name="learning_rate")
    except (TypeError, ValueError) as error:
        raise ConfigError.of(
            f"{_RATE_KEY} is {node!r}",
            "it is neither a number nor a schedule",
            "for example 1e-3, or schedule@optimizer.learning_rate=cosine",
        ) from error


def _default_rate(optimizer: Mapping[str, Any]) -> Any:
    """Returns the default of the target's `learning_rate`; None when it has none."""
    target = locate_target("optimizer", optimizer)
    parameter = inspect.signature(target).parameters.get("learning_rate")
    if parameter is None or parameter.default is inspect.Parameter.empty:
        return None
    return parameter.default
