"""Builds the training step: one optimizer, or one for each schedule that scaffolds set."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf
from hydra.utils import get_object

from runner.errors import ConfigError, Problem
from runner.targets import build_target

_Optimizer: TypeAlias = tf.compat.v1.train.Optimizer


@dataclass(frozen=True)
class Schedule:
    """How a variable trains.

    Attributes:
      freeze_until_step: the first global step at which it is updated.
      learning_rate_multiplier: multiplies the optimizer's learning rate.
    """

    freeze_until_step: int = 0
    learning_rate_multiplier: float = 1.0


def train_op(
    node: Mapping[str, Any],
    loss: tf.Tensor,
    global_step: tf.Variable,
    schedules: Sequence[tuple[tf.Variable, Schedule]],
) -> tf.Operation:
    """Returns the operation that runs one step and increments the global step.

    Variables of one schedule share an optimizer of their own. While a schedule freezes them, it
    changes neither them nor its slots.

    Args:
      node: the optimizer's configuration.
      loss: the scalar to minimise.
      global_step: the step counter.
      schedules: the variables to train, each with its schedule.

    Raises:
      ConfigError: when the optimizer cannot be built, or has no learning rate to multiply, or a
        reference variable is to be frozen for a while.
    """
    groups: dict[Schedule, list[tf.Variable]] = {}
    for variable, schedule in schedules:
        groups.setdefault(schedule, []).append(variable)
    optimizers = {each: build_optimizer(node, each.learning_rate_multiplier) for each in groups}
    updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
    with tf.control_dependencies(updates):
        if list(groups) == [Schedule()]:
            optimizer = optimizers[Schedule()]
            return optimizer.minimize(loss, global_step=global_step, var_list=groups[Schedule()])
        trained = [variable for variable, _ in schedules]
        pairs = next(iter(optimizers.values())).compute_gradients(loss, var_list=trained)
        gradients = {variable.ref(): gradient for gradient, variable in pairs}
        applied = []
        for schedule, variables in groups.items():
            found = [(gradients[each.ref()], each) for each in variables]
            found = [(gradient, variable) for gradient, variable in found if gradient is not None]
            if found:
                applied.append(_apply(optimizers[schedule], found, schedule, global_step))
    with tf.control_dependencies(applied):
        return global_step.assign_add(1, read_value=False)


def build_optimizer(node: Mapping[str, Any], multiplier: float = 1.0) -> _Optimizer:
    """Builds the optimizer with its learning rate multiplied.

    Raises:
      ConfigError: when it is no `tf.compat.v1.train.Optimizer`, or its learning rate is no number.
    """
    scaled = dict(node)
    if multiplier != 1.0:
        rate = node.get("learning_rate", _default_rate(str(node.get("_target_"))))
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise ConfigError(
                Problem(
                    f"learning_rate_multiplier is {multiplier:g}, and optimizer.learning_rate "
                    + ("is not there" if rate is None else f"is {rate!r}"),
                    "a multiplier needs the number that it multiplies",
                    "set optimizer.learning_rate to a number, name an optimizer that has it, or "
                    "delete learning_rate_multiplier from the scaffolds",
                )
            )
        scaled["learning_rate"] = rate * multiplier
    optimizer = build_target("optimizer", scaled)
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise ConfigError(
            Problem(
                f"optimizer: {node['_target_']} is not a tf.compat.v1.train.Optimizer",
                "only those keep their slots in the graph",
                "for example tensorflow.compat.v1.train.AdamOptimizer",
            )
        )
    return optimizer


def _apply(
    optimizer: _Optimizer,
    pairs: Sequence[tuple[Any, tf.Variable]],
    schedule: Schedule,
    global_step: tf.Variable,
) -> tf.Operation:
    if not schedule.freeze_until_step:
        return optimizer.apply_gradients(pairs)
    references = [each.op.name for _, each in pairs if each.dtype != each.dtype.base_dtype]
    if references:
        raise ConfigError(
            Problem(
                f"freeze_until_step is set for {', '.join(references)}",
                "a reference variable cannot be updated under a condition",
                "make it with use_resource=True, or delete freeze_until_step",
            )
        )
    due = global_step.read_value() >= schedule.freeze_until_step

    def update() -> tf.Tensor:
        with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
            return tf.constant(True)

    return tf.cond(due, update, lambda: tf.constant(False)).op


def _default_rate(target: str) -> Any:
    """Returns the default of the target's `learning_rate`; None when it has none."""
    parameter = inspect.signature(get_object(target)).parameters.get("learning_rate")
    if parameter is None or parameter.default is inspect.Parameter.empty:
        return None
    return parameter.default
