"""Optimizers and their schedules, gradients, and moving averages of the weights.

There is one optimizer, or one for each schedule that scaffolds set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from runner.config.instantiation import References, build_target, locate_target
from runner.config.schema import ClipConfig
from runner.errors import ConfigError
from runner.graph.keras_optimizer import KerasOptimizer, require_usable
from runner.restoration.variables import EMA_SUFFIX

_Optimizer: TypeAlias = tf.compat.v1.train.Optimizer
# As `tf.compat.v1.train.Optimizer` computes and applies them; None where the loss does not depend
# on the variable.
Gradients: TypeAlias = list[tuple[Any, tf.Variable]]
# Metric name -> mean over a batch, the gradients, and the seconds waited for the batch.
Batch: TypeAlias = tuple[dict[str, tf.Tensor], Gradients, tf.Tensor]


@dataclass(frozen=True)
class Schedule:
    """The schedule by which a variable trains.

    Attributes:
      freeze_until_step: the first global step at which it is updated.
      learning_rate_multiplier: multiplies the optimizer's learning rate.
    """

    freeze_until_step: int = 0
    learning_rate_multiplier: float = 1.0

    @property
    def scope(self) -> str:
        """The name scope of its optimizer's state, e.g. `from_step_500_rate_x0.1`.

        Empty without a schedule, so that names do not depend on what else is scheduled.
        """
        parts = [f"from_step_{self.freeze_until_step}"] * bool(self.freeze_until_step)
        if self.learning_rate_multiplier != 1.0:
            # TensorFlow takes no plus sign in a name.
            parts.append(f"rate_x{self.learning_rate_multiplier:g}".replace("+", ""))
        return "_".join(parts)


def build_optimizers(
    node: Mapping[str, Any],
    schedules: Sequence[tuple[tf.Variable, Schedule]],
    global_step: tf.Variable,
    *,
    rate: tf.Tensor | None,
    weights: Mapping[Any, keras.Variable],
) -> dict[Schedule, _Optimizer]:
    """Returns an optimizer for each schedule, in the order in which they first occur.

    `rate` is the learning rate, a float32 scalar; None uses the optimizer's own. `KerasOptimizer`
    describes `weights`.

    Raises:
      ConfigError: when the optimizer cannot be built, or has no learning rate to multiply.
    """
    distinct = dict.fromkeys(schedule for _, schedule in schedules)
    optimizers: dict[Schedule, _Optimizer] = {}
    for schedule in distinct:
        multiplier = schedule.learning_rate_multiplier
        optimizer = build_optimizer(node, global_step, rate, multiplier=multiplier)
        if isinstance(optimizer, keras.optimizers.Optimizer):
            require_usable(optimizer, alone=len(distinct) == 1)
            optimizer = KerasOptimizer(optimizer, weights)
        optimizers[schedule] = optimizer
    return optimizers


def apply_gradients(
    optimizers: Mapping[Schedule, _Optimizer],
    gradients: Gradients,
    schedules: Sequence[tuple[tf.Variable, Schedule]],
    *,
    global_step: tf.Variable,
) -> tf.Operation:
    """Returns the operation that updates the variables and increments the global step.

    The variables of one schedule share one optimizer. It changes neither them nor its slots while
    the schedule freezes them.
    """
    if list(optimizers) == [Schedule()]:
        return optimizers[Schedule()].apply_gradients(gradients, global_step=global_step)
    schedule_of = {variable.ref(): schedule for variable, schedule in schedules}
    groups: dict[Schedule, Gradients] = {}
    for gradient, variable in gradients:
        if gradient is not None:
            groups.setdefault(schedule_of[variable.ref()], []).append((gradient, variable))
    applied = [
        _apply(optimizers[schedule], pairs, schedule, global_step=global_step)
        for schedule, pairs in groups.items()
    ]
    with tf.control_dependencies(applied):
        return global_step.assign_add(1, read_value=False)


def shared_state(
    optimizers: Mapping[Schedule, _Optimizer], schedules: Sequence[tuple[tf.Variable, Schedule]]
) -> dict[str, tuple[str, ...]]:
    """Returns the variables that optimizers share between weights, such as Adam's powers.

    The names of their operations are mapped to the names of the weights' operations. Call it after
    `apply_gradients`.
    """
    shared = {}
    for schedule, optimizer in optimizers.items():
        members = [variable for variable, other in schedules if other == schedule]
        slots = {
            slot.ref()
            for name in optimizer.get_slot_names()
            for member in members
            if (slot := optimizer.get_slot(member, name)) is not None
        }
        for variable in optimizer.variables():
            if variable.ref() not in slots:
                shared[variable.op.name] = tuple(member.op.name for member in members)
    return shared


def build_optimizer(
    node: Mapping[str, Any],
    global_step: tf.Variable,
    rate: tf.Tensor | None = None,
    *,
    multiplier: float = 1.0,
) -> _Optimizer | keras.optimizers.Optimizer:
    """Builds the optimizer with its learning rate multiplied.

    Raises:
      ConfigError: when it is no optimizer, or has no rate to multiply.
    """
    target = locate_target("optimizer", node)
    node, names = dict(node), {"global_step": global_step}
    if rate is not None:
        node["learning_rate"] = "${graph:learning_rate}"
        multiplied = rate if multiplier == 1.0 else rate * multiplier
        # Keras takes no tensor, but a function that returns one.
        is_keras = isinstance(target, type) and issubclass(target, keras.optimizers.Optimizer)
        names["learning_rate"] = (lambda: multiplied) if is_keras else multiplied
    elif multiplier != 1.0:
        raise ConfigError.of(
            f"learning_rate_multiplier is {multiplier:g}, and there is no optimizer.learning_rate",
            "a multiplier needs what it multiplies",
            "name an optimizer that has it, or delete the scaffolds' learning_rate_multiplier",
        )
    try:
        optimizer = build_target("optimizer", node, References({"graph": names}))
    except ConfigError:
        if rate is None or isinstance(target, type):
            raise
        # A function that makes an optimizer of Keras.
        names["learning_rate"] = lambda: multiplied
        optimizer = build_target("optimizer", node, References({"graph": names}))
    if isinstance(optimizer, keras.optimizers.Optimizer | tf.compat.v1.train.Optimizer):
        return optimizer
    raise ConfigError.of(
        f"optimizer: {node['_target_']} is not an optimizer",
        "it must be a keras.optimizers.Optimizer or a tf.compat.v1.train.Optimizer",
        "for example keras.optimizers.AdamW",
    )


def _apply(
    optimizer: _Optimizer,
    pairs: Sequence[tuple[Any, tf.Variable]],
    schedule: Schedule,
    *,
    global_step: tf.Variable,
) -> tf.Operation:
    if not schedule.freeze_until_step:
        with tf.name_scope(schedule.scope) if schedule.scope else contextlib.nullcontext():
            return optimizer.apply_gradients(pairs)
    due = global_step.read_value() >= schedule.freeze_until_step

    def update() -> tf.Tensor:
        # Its variables are made outside of the branch, under the names that they have inside.
        with tf.name_scope(schedule.scope):
            applied = optimizer.apply_gradients(pairs)
        with tf.control_dependencies([applied]):
            return tf.constant(True)

    def update_if_due() -> tf.Tensor:
        return tf.cond(due, update, lambda: tf.constant(False))

    if isinstance(optimizer, KerasOptimizer):
        # Its update is a function. Called in a branch of the session's graph itself, steps that are
        # repeated from the same state differ now and then in the last bits.
        return tf.function(update_if_due, autograph=False)().op
    return update_if_due().op


def clip(gradients: Gradients, bounds: ClipConfig) -> Gradients:
    """Returns the gradients within the bounds: by value, then by norm, then by global norm."""
    indices = [index for index, (gradient, _) in enumerate(gradients) if gradient is not None]
    clipped = [gradients[index][0] for index in indices]
    if bounds.value is not None:
        clipped = [tf.clip_by_value(value, -bounds.value, bounds.value) for value in clipped]
    if bounds.norm is not None:
        clipped = [tf.clip_by_norm(value, bounds.norm) for value in clipped]
    if bounds.global_norm is not None:
        clipped, _ = tf.clip_by_global_norm(clipped, bounds.global_norm)
    by_index = dict(zip(indices, clipped, strict=True))
    return [(by_index.get(index), variable) for index, (_, variable) in enumerate(gradients)]


def accumulate(
    one_batch: Callable[[], Batch],
    names: Sequence[str],
    variables: Sequence[tf.Variable],
    *,
    count: int,
) -> Batch:
    """Returns means over `count` batches, which are read one by one so that memory holds one.

    Every run of the train op makes one update; sparse gradients become dense.
    """
    used: set[int] = set()

    def add(index: Any, sums: Mapping[str, Any], totals: list[Any], waited: Any) -> Any:
        means, gradients, seconds = one_batch()
        used.update(number for number, (value, _) in enumerate(gradients) if value is not None)
        return (
            index + 1,
            {name: sums[name] + means[name] for name in names},
            [
                total if gradient is None else total + tf.convert_to_tensor(gradient)
                for total, (gradient, _) in zip(totals, gradients, strict=True)
            ],
            waited + seconds,
        )

    def loop() -> Any:
        sums = {name: tf.constant(0.0) for name in names}
        totals = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
        start = (tf.constant(0), sums, totals, tf.constant(0.0, tf.float64))
        return tf.while_loop(lambda index, *_: index < count, add, start, parallel_iterations=1)

    # A tf.function keeps side effects, such as batch norm's, within the loop's body.
    _, sums, totals, waited = tf.function(loop, autograph=False)()
    means = {name: value / count for name, value in sums.items()}
    gradients = [
        total / tf.cast(count, total.dtype) if index in used else None
        for index, total in enumerate(totals)
    ]
    return means, list(zip(gradients, variables, strict=True)), waited


class AveragedWeights:
    """Moving averages of weights, which can change places with them.

    Args:
      pairs: weights and their averages.
    """

    def __init__(self, pairs: Sequence[tuple[tf.Variable, tf.Variable]]) -> None:
        # Outside of the control dependencies of the update, which waits for the train op.
        with tf.control_dependencies(None), tf.name_scope("swap_averages"):
            values = [(tf.identity(weight), tf.identity(average)) for weight, average in pairs]
            with tf.control_dependencies(tf.nest.flatten(values)):
                assignments = [
                    (weight.assign(average_value), average.assign(weight_value))
                    for (weight, average), (weight_value, average_value) in zip(
                        pairs, values, strict=True
                    )
                ]
            self._swap = tf.group(*tf.nest.flatten(assignments))

    @contextmanager
    def in_place(self, session: tf.compat.v1.Session) -> Iterator[None]:
        """Swaps the averages and the weights within the block."""
        session.run(self._swap)
        try:
            yield
        finally:
            session.run(self._swap)


def average_weights(
    weights: Sequence[tf.Variable], decay: float, global_step: tf.Tensor
) -> tuple[AveragedWeights, tf.Operation]:
    """Returns `tf.train.ExponentialMovingAverage`s of the weights, and their update operation.

    An update keeps the part `decay` of an average, and at the start at most
    (1 + step) / (10 + step).
    """
    averages = tf.train.ExponentialMovingAverage(decay, num_updates=global_step)
    update = averages.apply(weights)
    return AveragedWeights([(weight, averages.average(weight)) for weight in weights]), update


def averaged_names(variables: Mapping[str, tf.Variable], checkpoint: str) -> dict[str, tf.Variable]:
    """Returns tensor name -> variable, with the checkpoint's averages where it has them."""
    saved = tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()
    return {
        f"{name}{EMA_SUFFIX}" if f"{name}{EMA_SUFFIX}" in saved else name: variable
        for name, variable in variables.items()
    }
