"""Adds what a run needs to a Keras optimizer, before Keras traces a step that uses it.

The methods `apply` and `update_step`, which every step of Keras or of one's own ends in, are
wrapped on the instance: gradients are accumulated, summed over replicas and clipped, and each
variable has a learning rate of its own. The optimizer computes everything else, as in `fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from runner.config import conflicts
from runner.config.schema import ClipConfig, RunConfig
from runner.errors import ConfigError
from runner.graph.step_sums import StepSums
from runner.internals.keras import WEIGHT_DECAY, trained_by
from runner.internals.tensorflow1_optimizers import TensorFlow1Optimizer
from runner.planning.model_variables import tensorflow_variable
from runner.system.user_code import calling

_DIVIDE_BY_RATES = (keras.optimizers.Ftrl, tf.compat.v1.train.FtrlOptimizer)


@dataclass(frozen=True)
class TrainingPolicy:
    """How a variable trains.

    Attributes:
      freeze_until_step: the first global step that changes it. Until then its learning rate is 0,
        and its slots follow its gradients.
      learning_rate_multiplier: multiplies the optimizer's learning rate, also in weight decay.
    """

    freeze_until_step: int = 0
    learning_rate_multiplier: float = 1.0


@dataclass
class RunOptimizer:
    """One Keras optimizer with what a run adds.

    Args:
      optimizer: the optimizer, not yet traced.
      config: the run's configuration.
      step: the global step.
      policies: `id` of a TensorFlow variable -> its policy; others have the default.
      rate_scale: multiplies every learning rate; None does not.
      sums: sums the gradients of replicas; None where there is one.

    Attributes:
      applied: whether a traced step has applied gradients with it.
    """

    optimizer: keras.optimizers.Optimizer
    config: RunConfig
    step: tf.Variable
    policies: Mapping[int, TrainingPolicy]
    rate_scale: tf.Variable | None = None
    sums: StepSums | None = None
    applied: bool = field(default=False, init=False)
    _collected: list[Sequence[Any]] | None = field(default=None, init=False)
    _applied_to: Sequence[Any] = field(default=(), init=False)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Wraps the optimizer's methods within the block, in which steps are traced.

        Raises:
          ConfigError: when the optimizer does not fit the run's keys.
        """
        optimizer = self.optimizer
        # The one within a LossScaleOptimizer gets gradients of the loss itself.
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        is_schedule_free = any(kind.__name__ == "ScheduleFreeAdamW" for kind in type(inner).__mro__)
        if is_schedule_free and any(part.checkpoint for part in self.config.scaffolds.values()):
            raise ConfigError.of(
                "optimizer: ScheduleFreeAdamW does not go with a scaffold's checkpoint",
                "it begins with a copy of the weights, made before a checkpoint has restored them",
                "use keras.optimizers.AdamW with a schedule",
            )
        wrapped: list[tuple[Any, str, Callable[..., None]]] = []
        if any(vars(self.config.train.clip).values()):
            wrapped.append((inner, "apply", self._apply_clipped))
        wrapped.append((optimizer, "apply", self._apply_summed))
        if self.rate_scale is not None or any(
            policy != TrainingPolicy() for policy in self.policies.values()
        ):
            self._require_rate(inner)
            wrapped.append((inner, "update_step", self._update_step))
            wrapped.append((inner, WEIGHT_DECAY, partial(self._decay, inner)))
        for holder, name, method in wrapped:
            setattr(holder, name, partial(method, getattr(holder, name)))
        try:
            yield
        finally:
            for holder, name in {(holder, name): None for holder, name, _ in wrapped}:
                delattr(holder, name)

    def set_averages(self) -> None:
        """Makes the optimizer keep the averages that `train.ema_decay` asks for.

        Raises:
          ConfigError: when it is built already, or keeps some by itself.
        """
        self._set_averages(getattr(self.optimizer, "inner_optimizer", self.optimizer))

    def _set_averages(self, inner: Any) -> None:
        decay = self.config.train.ema_decay
        if inner.use_ema and inner.ema_momentum == decay:
            return
        if inner.use_ema:
            raise conflicts.AVERAGED_TWICE.error()
        if inner.built:
            raise conflicts.AVERAGED_BY_BUILT.error()
        inner.use_ema, inner.ema_momentum, inner.ema_overwrite_frequency = True, decay, None

    def _require_rate(self, inner: Any) -> None:
        """Raises a ConfigError for an optimizer that learning rates do not freeze or slow down."""
        freezes = any(policy.freeze_until_step for policy in self.policies.values())
        multipliers = [policy.learning_rate_multiplier for policy in self.policies.values()]
        if isinstance(inner, TensorFlow1Optimizer) and not inner.has_rate:
            other = next((multiplier for multiplier in multipliers if multiplier != 1.0), None)
            setting = "freeze_until_step is set" if freezes else "a rollback lowers learning rates"
            setting = setting if other is None else f"learning_rate_multiplier is {other:g}"
            raise conflicts.WITHOUT_RATE.error(
                f"{setting}, and there is no optimizer.learning_rate"
            )
        kind = inner.optimizer if isinstance(inner, TensorFlow1Optimizer) else inner
        if freezes and isinstance(kind, _DIVIDE_BY_RATES):
            raise conflicts.FROZEN_BY_FTRL.error("freeze_until_step is set beside Ftrl")

    def _apply_summed(self, original: Any, grads: Any, trainable_variables: Any = None) -> None:
        self.applied = True
        if self._collected is not None:
            self._applied_to = trainable_variables or trained_by(self.optimizer)
            gradients = list(grads)
            self._collected.append(self.sums.weighted(gradients) if self.sums else gradients)
            return
        if self.sums is not None:
            variables = trainable_variables or trained_by(self.optimizer)
            grads = self.sums.of_gradients(list(grads), variables)
        with calling("optimizer"):
            original(grads, trainable_variables)

    def _apply_clipped(self, original: Any, grads: Any, trainable_variables: Any = None) -> None:
        original(clip(list(grads), self.config.train.clip), trainable_variables)

    def _update_step(self, original: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
        factor = self._factor(variable)
        if factor is not None:
            learning_rate = learning_rate * tf.cast(factor, learning_rate.dtype)
        original(gradient, variable, learning_rate)

    def _decay(self, inner: Any, original: Any, variables: Sequence[Any]) -> None:
        """Decays weights by the learning rate of each."""
        decay = inner.weight_decay
        if decay is None:
            return
        try:
            for variable in variables:
                factor = self._factor(variable)
                inner.weight_decay = decay if factor is None else decay * factor
                original([variable])
        finally:
            inner.weight_decay = decay

    def _factor(self, variable: Any) -> tf.Tensor | None:
        """Returns the factor of a variable's learning rate, a float32 scalar; None for 1."""
        policy = self.policies.get(id(tensorflow_variable(variable)), TrainingPolicy())
        factors = []
        if policy.learning_rate_multiplier != 1.0:
            factors.append(tf.constant(policy.learning_rate_multiplier))
        if policy.freeze_until_step:
            factors.append(tf.cast(self.step >= policy.freeze_until_step, tf.float32))
        if self.rate_scale is not None:
            factors.append(self.rate_scale.read_value())
        factor = None
        for other in factors:
            factor = other if factor is None else factor * other
        return factor


def clip(gradients: Sequence[Any], bounds: ClipConfig) -> list[Any]:
    """Returns the gradients within the bounds: by value, then by norm, then by global norm."""
    indices = [index for index, gradient in enumerate(gradients) if gradient is not None]
    clipped = [gradients[index] for index in indices]
    if bounds.value is not None:
        clipped = [tf.clip_by_value(value, -bounds.value, bounds.value) for value in clipped]
    if bounds.norm is not None:
        clipped = [tf.clip_by_norm(value, bounds.norm) for value in clipped]
    if bounds.global_norm is not None:
        clipped, _ = tf.clip_by_global_norm(clipped, bounds.global_norm)
    by_index = dict(zip(indices, clipped, strict=True))
    return [by_index.get(index) for index in range(len(gradients))]


def accumulated(
    step: Callable[[Any], Any],
    batches: Sequence[Any],
    optimizers: Sequence[RunOptimizer],
    *,
    sums: StepSums | None = None,
    shares: Sequence[tf.Tensor] = (),
) -> Any:
    """Takes one step of several batches; each optimizer applies the mean of their gradients.

    Args:
      step: takes a training step of a batch.
      batches: the batches; one is computed after the other, so that memory holds one.
      optimizers: the optimizers that the step applies gradients with.
      sums: the sums over replicas; None where there is one.
      shares: this replica's share of the examples of each batch.

    Returns:
      What the last call of `step` returns.
    """

    def gradients_of(batch: Any) -> tuple[Any, list[Sequence[Any]]]:
        with _all_collecting(optimizers) as collected:
            logs = step(batch)
        if any(len(parts) > 1 for parts in collected):
            raise conflicts.ACCUMULATED_TWICE.error()
        return logs, [parts[0] if parts else [] for parts in collected]

    # Traced once, and called for each batch, unless there are replicas.
    one_batch = tf.function(gradients_of, autograph=False)
    logs: Any = None
    totals: list[Sequence[Any]] = []
    before: list[tf.Tensor] = []
    for number, batch in enumerate(batches):
        if sums is not None:  # Collectives of two batches have different keys.
            sums.share = shares[number]
            one_batch = tf.function(gradients_of, autograph=False)
        with tf.control_dependencies(before):
            later = tf.nest.map_structure(tf.identity, batch, expand_composites=True)
        logs, gradients = one_batch(later)
        totals.append(gradients)
        before = [tensor for tensor in tf.nest.flatten(gradients) if tensor is not None]
    if sums is not None:
        sums.share = None  # The gradients are weighted.
    for index, optimizer in enumerate(optimizers):
        summed = _sum([gradients[index] for gradients in totals])
        if summed:
            means = [None if value is None else value / len(batches) for value in summed]
            optimizer.optimizer.apply(means, optimizer._applied_to)
    return logs


@contextmanager
def _all_collecting(optimizers: Sequence[RunOptimizer]) -> Iterator[list[list[Sequence[Any]]]]:
    collected: list[list[Sequence[Any]]] = [[] for _ in optimizers]
    for optimizer, gradients in zip(optimizers, collected, strict=True):
        optimizer._collected = gradients
    try:
        yield collected
    finally:
        for optimizer in optimizers:
            optimizer._collected = None


def _sum(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Adds gradients up; sparse ones become dense."""
    if not parts:
        return []
    return [
        None
        if all(value is None for value in values)
        else tf.add_n([tf.convert_to_tensor(value) for value in values if value is not None])
        for values in zip(*parts, strict=True)
    ]
