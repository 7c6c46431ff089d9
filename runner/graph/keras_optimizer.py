"""Keras's optimizers as TensorFlow's: in a graph, with slots named after their variables.

A slot is named after its variable and the optimizer's class, e.g.
`cnn/conv1/kernel/AdamW/velocity`; a moving average (`use_ema=True`) as by
`tf.train.ExponentialMovingAverage`; state without a variable e.g. `AdamW/iterations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from runner.config.schema import RunConfig
from runner.errors import ConfigError, Problem
from runner.internals.keras import Variable, slots_of, spares_weights
from runner.restoration.model_variables import tensorflow_variable
from runner.restoration.variables import EMA_SUFFIX

# Class -> why it cannot be used, and what to use.
_REFUSED = {
    "LossScaleOptimizer": (
        "model.dtype_policy=mixed_float16 scales the loss of every optimizer, dynamically like it",
        "name its inner optimizer as optimizer._target_",
    ),
    "MultiOptimizer": (
        "a variable has the slots of one optimizer only",
        "learning_rate_multiplier and freeze_until_step of scaffolds train parts differently",
    ),
    "ScheduleFreeAdamW": (
        "it begins with a copy of the weights, made before a checkpoint has restored them",
        "use keras.optimizers.AdamW with a schedule",
    ),
}


def require_usable(optimizer: keras.optimizers.Optimizer, *, alone: bool) -> None:
    """Raises a ConfigError with every setting of an optimizer that does not work in a graph.

    Args:
      optimizer: the optimizer.
      alone: whether it trains all variables; otherwise there is one for each schedule.
    """
    problems = [
        Problem(f"optimizer: keras.optimizers.{name} cannot be used", *_REFUSED[name])
        for kind in type(optimizer).__mro__
        if (name := kind.__name__) in _REFUSED
    ]
    steps = optimizer.gradient_accumulation_steps
    if steps:
        problems.append(
            Problem(
                f"optimizer.gradient_accumulation_steps is {steps}",
                "Keras would count a step for each batch, and the runner one for each update",
                f"delete it, and set train.accumulate={steps}",
            )
        )
    if optimizer.global_clipnorm and not alone:
        problems.append(
            Problem(
                f"optimizer.global_clipnorm is {optimizer.global_clipnorm:g}, and scaffolds have "
                "schedules of their own",
                "each schedule has an optimizer, which knows the norm of its own gradients only",
                f"delete it, and set train.clip.global_norm={optimizer.global_clipnorm:g}",
            )
        )
    if problems:
        raise ConfigError(*problems)


def compiled_optimizer(model: Any) -> dict[str, Any]:
    """Returns the configuration of a compiled model's optimizer: a `_target_` and its arguments.

    Raises:
      ConfigError: when the model has none, or one that its configuration does not describe.
    """
    optimizer = getattr(model, "optimizer", None)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer  # `compile` adds the scale for mixed_float16.
    if optimizer is None:
        compiled = getattr(model, "compiled", False)
        raise ConfigError.of(
            "optimizer has no _target_",
            "the model has none of its own: it is "
            + ("compiled with optimizer=None" if compiled else "not compiled"),
            "choose one, for example optimizer=adamw",
        )
    rate = optimizer.learning_rate
    constant = isinstance(rate, Variable)
    if constant:
        # A graph has no value of it for `get_config`, which takes a schedule as it is.
        optimizer.learning_rate = keras.optimizers.schedules.PolynomialDecay(1.0, 1)
    try:
        settings = optimizer.get_config()
        scheduled = None if constant else _schedule_node(settings["learning_rate"])
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _undescribed(optimizer, f"its get_config raises {error!r}") from error
    if spares_weights(optimizer):
        raise _undescribed(optimizer, "exclude_from_weight_decay is not in its get_config")
    kind = type(optimizer)
    target = f"{kind.__module__}.{kind.__qualname__}"
    node = scheduled or float(tf.get_static_value(rate.value.initial_value))
    return {"_target_": target, **settings, "learning_rate": node}


def _schedule_node(schedule: Any) -> dict[str, Any]:
    """Returns the configuration of a learning rate schedule that Keras has described."""
    if schedule["class_name"] in ("__lambda__", "function"):
        raise TypeError("the learning rate is a function")
    return {"_target_": f"{schedule['module']}.{schedule['class_name']}", **schedule["config"]}


def optimizer_notes(config: RunConfig, model: Any) -> Iterator[str]:
    """Yields lines on the use of a compiled model's optimizer, which `config` has already."""
    yield f"optimizer: the compiled model's own, {config.optimizer['_target_'].rpartition('.')[2]}"
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    if scaled and config.model.get("dtype_policy") != "mixed_float16":
        yield "optimizer: no LossScaleOptimizer, which model.dtype_policy=mixed_float16 stands for"


def _undescribed(optimizer: Any, cause: str) -> ConfigError:
    return ConfigError.of(
        f"optimizer: the compiled model's {type(optimizer).__name__} cannot be recreated",
        cause,
        "name a function that returns it as optimizer._target_",
    )


class KerasOptimizer(tf.compat.v1.train.Optimizer):
    """Applies gradients by an optimizer of Keras.

    It creates its variables in the graph in which it applies gradients first, and applies gradients
    only there, always for the same variables.

    Args:
      optimizer: the optimizer, not yet built.
      weights: `ref()` of a TensorFlow variable -> its Keras variable, whose constraint and path
        Keras reads; for others the optimizer gets the TensorFlow variable.

    Attributes:
      names: operation's name of a variable of the optimizer -> its name as described above.
      averages: weight and moving average; empty without `use_ema`.
    """

    def __init__(
        self, optimizer: keras.optimizers.Optimizer, weights: Mapping[Any, keras.Variable]
    ) -> None:
        super().__init__(use_locking=False, name=type(optimizer).__name__)
        self._optimizer, self._weights = optimizer, weights
        # Keras would divide the gradients after the runner has clipped them.
        self._scale, optimizer.loss_scale_factor = optimizer.loss_scale_factor, None
        # Slot name -> variable's ref -> slot, as the base class has them for `get_slot`.
        self._slots_by_name: dict[str, dict[Any, tf.Variable]] = {}
        self.names: dict[str, str] = {}
        self.averages: list[tuple[tf.Variable, tf.Variable]] = []

    def compute_gradients(self, loss: Any, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """See `tf.compat.v1.train.Optimizer`; with `loss_scale_factor`, of the scaled loss."""
        if self._scale is None:
            return list(super().compute_gradients(loss, *args, **kwargs))
        pairs = super().compute_gradients(loss * self._scale, *args, **kwargs)
        return [(_divided(gradient, self._scale), variable) for gradient, variable in pairs]

    def apply_gradients(
        self,
        grads_and_vars: Sequence[tuple[Any, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """See `tf.compat.v1.train.Optimizer`."""
        pairs = [pair for pair in grads_and_vars if pair[0] is not None]
        if not pairs:
            raise ValueError("No gradients provided for any variable.")
        weights = [self._weights.get(variable.ref(), variable) for _, variable in pairs]
        if not self._optimizer.built:
            with tf.init_scope():
                self._build(weights)
        gradients = [gradient for gradient, _ in pairs]

        def update() -> tf.Tensor:
            self._optimizer.apply(gradients, weights)
            every = self._optimizer.ema_overwrite_frequency
            if self.averages and every:
                # Keras compares by `==`, which is no operation in the functions of a graph.
                due = tf.equal(self._optimizer.iterations % every, 0)
                tf.cond(due, self._overwrite, lambda: None)
            return tf.constant(True)

        # A tf.function runs the side effects, which nothing in a graph would wait for.
        applied = tf.function(update, autograph=False)().op
        if global_step is None:
            return applied
        with tf.control_dependencies([applied]):
            return global_step.assign_add(1, read_value=False)

    def get_slot_names(self) -> list[str]:
        """See `tf.compat.v1.train.Optimizer`."""
        return sorted(self._slots_by_name)

    def get_slot(self, var: tf.Variable, name: str) -> tf.Variable | None:
        """See `tf.compat.v1.train.Optimizer`."""
        return self._slots_by_name.get(name, {}).get(var.ref())

    def variables(self) -> list[tf.Variable]:
        """See `tf.compat.v1.train.Optimizer`."""
        return [variable.value for variable in self._optimizer.variables]

    def _overwrite(self) -> None:
        for variable, average in self.averages:
            weight = self._weights.get(variable.ref())
            constrained = weight.constraint if weight is not None else None
            variable.assign(constrained(average) if constrained else average)

    def _build(self, weights: Sequence[Any]) -> None:
        optimizer = self._optimizer
        optimizer.build(list(weights))
        scope = tf.compat.v1.get_default_graph().get_name_scope()
        shared = f"{scope}/{self.get_name()}" if scope else self.get_name()
        for attribute, value in vars(optimizer).items():
            if isinstance(value, Variable):
                self.names[value.value.op.name] = f"{shared}/{attribute.strip('_')}"
        for slot in slots_of(optimizer):
            variable, weight = slot.variable.value, tensorflow_variable(slot.trained)
            self._slots_by_name.setdefault(slot.name, {})[weight.ref()] = variable
            if slot.name == "average":
                self.names[variable.op.name] = f"{weight.op.name}{EMA_SUFFIX}"
                self.averages.append((weight, variable))
            else:
                self.names[variable.op.name] = f"{weight.op.name}/{self.get_name()}/{slot.name}"


def named_state(
    optimizer: keras.optimizers.Optimizer, prefix: str, owner: Callable[[Any], str]
) -> Iterator[tuple[keras.Variable, str]]:
    """Yields the variables of an optimizer, and their names in checkpoints.

    Keras's names hold counters of the process.

    Args:
      optimizer: the optimizer.
      prefix: what the optimizer is called.
      owner: returns the name of a variable that it trains, which its slots follow.
    """
    for key, value in vars(optimizer).items():
        if isinstance(value, Variable):
            yield value, f"{prefix}/{key.strip('_')}"
    for slot in slots_of(optimizer) if optimizer.built else ():
        average_name = f"{owner(slot.trained)}/{prefix}{EMA_SUFFIX}"
        name = f"{owner(slot.trained)}/{prefix}/{slot.name}"
        yield slot.variable, average_name if slot.name == "average" else name


def optimizers_of(model: keras.Model) -> list[tuple[str, Any]]:
    """Returns the attributes of a model that are optimizers; those in a list are numbered.

    The optimizer that a part of the model was compiled with is `PART_optimizer`.
    """
    by_id: dict[int, tuple[str, Any]] = {}
    attributes = {"optimizer": getattr(model, "optimizer", None), **vars(model)}
    for attribute, value in attributes.items():
        if attribute.startswith("_self_"):  # TensorFlow's records of the same objects.
            continue
        if isinstance(value, keras.Model):
            value = {"optimizer": getattr(value, "optimizer", None)}
        values = value if isinstance(value, Mapping | Sequence) else {"": value}
        named = values.items() if isinstance(values, Mapping) else enumerate(values)
        for key, optimizer in named:
            if isinstance(optimizer, keras.optimizers.Optimizer):
                name = f"{attribute.strip('_')}_{key}".rstrip("_")
                by_id.setdefault(id(optimizer), (name, optimizer))
    return list(by_id.values())


def _divided(gradient: Any, scale: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / scale, gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient / scale
