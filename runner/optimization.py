"""One optimizer, or one for each schedule that scaffolds set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from runner.errors import ConfigError, Problem
from runner.gradients import Gradients
from runner.references import References
from runner.targets import build_target, locate_target

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


def build_optimizers(
    node: Mapping[str, Any],
    schedules: Sequence[tuple[tf.Variable, Schedule]],
    global_step: tf.Variable,
    rate: tf.Tensor | None,
) -> dict[Schedule, _Optimizer]:
    """Returns an optimizer for each schedule, in the order in which they first occur.

    Args:
      node: the optimizer's configuration.
      schedules: the variables to train, each with its schedule.
      global_step: the step counter, `${graph:global_step}` in the configuration.
      rate: the learning rate; None leaves it to the optimizer.

    Raises:
      ConfigError: when the optimizer cannot be built, or has no learning rate to multiply.
    """
    found = dict.fromkeys(schedule for _, schedule in schedules)
    return {
        each: build_optimizer(node, global_step, rate, each.learning_rate_multiplier)
        for each in found
    }


def apply_gradients(
    optimizers: Mapping[Schedule, _Optimizer],
    gradients: Gradients,
    schedules: Sequence[tuple[tf.Variable, Schedule]],
    global_step: tf.Variable,
) -> tf.Operation:
    """Returns the operation that updates the variables and increments the global step.

    Variables of one schedule share an optimizer of their own. While a schedule freezes them, it
    changes neither them nor its slots.

    Args:
      optimizers: from `build_optimizers`.
      gradients: of all variables.
      schedules: the variables to train, each with its schedule.
      global_step: the step counter.

    Raises:
      ConfigError: when a reference variable is to be frozen for a while.
    """
    if list(optimizers) == [Schedule()]:
        return optimizers[Schedule()].apply_gradients(gradients, global_step=global_step)
    schedule_of = {variable.ref(): schedule for variable, schedule in schedules}
    groups: dict[Schedule, Gradients] = {}
    for gradient, variable in gradients:
        if gradient is not None:
            groups.setdefault(schedule_of[variable.ref()], []).append((gradient, variable))
    applied = [
        _apply(optimizers[schedule], pairs, schedule, global_step)
        for schedule, pairs in groups.items()
    ]
    with tf.control_dependencies(applied):
        return global_step.assign_add(1, read_value=False)


def build_optimizer(
    node: Mapping[str, Any],
    global_step: tf.Variable,
    rate: tf.Tensor | None = None,
    multiplier: float = 1.0,
) -> _Optimizer:
    """Builds the optimizer with its learning rate multiplied.

    Raises:
      ConfigError: when it is no `tf.compat.v1.train.Optimizer`, or has no rate to multiply.
    """
    node, names = dict(node), {"global_step": global_step}
    if rate is not None:
        node["learning_rate"] = "${graph:learning_rate}"
        names["learning_rate"] = rate if multiplier == 1.0 else rate * multiplier
    elif multiplier != 1.0:
        raise ConfigError(
            Problem(
                f"learning_rate_multiplier is {multiplier:g}, and there is no "
                "optimizer.learning_rate",
                "a multiplier needs what it multiplies",
                "name an optimizer that has it, or delete learning_rate_multiplier from the "
                "scaffolds",
            )
        )
    # Keras's optimizers would refuse the tensor before they are refused.
    target = locate_target("optimizer", node)
    fits = not isinstance(target, type) or issubclass(target, tf.compat.v1.train.Optimizer)
    optimizer = build_target("optimizer", node, References({"graph": names})) if fits else None
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
