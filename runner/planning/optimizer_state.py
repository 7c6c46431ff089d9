"""The variables of a model's optimizers, by names that stay the same in every process.

A slot is named after its variable and the optimizer, `cnn/conv1/kernel/AdamW/velocity`; a moving
average (`use_ema=True`) as by `tf.train.ExponentialMovingAverage`; state that an optimizer keeps
once e.g. `AdamW/iterations`. Keras's own names hold counters of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from runner.internals.keras import Variable, slots_of
from runner.internals.tensorflow1_optimizers import TensorFlow1Optimizer
from runner.planning.model_variables import tensorflow_variable
from runner.planning.optimizer_slots import LEARNING_RATE, LOSS_SCALE
from runner.planning.variables import EMA_SUFFIX


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


def kind_of(optimizer: keras.optimizers.Optimizer) -> str:
    """Returns the name of an optimizer's class; of one of TensorFlow 1, of its operations."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(inner, TensorFlow1Optimizer):
        return str(inner.name)
    return type(inner).__name__


def named_state(
    optimizer: keras.optimizers.Optimizer, prefix: str, owner: Callable[[Any], str]
) -> Iterator[tuple[tf.Variable, str]]:
    """Yields the variables of an optimizer, in the order of creation, and their names.

    Checkpoints use the names, and files of Keras number the variables in that order.

    Args:
      optimizer: the optimizer.
      prefix: what the optimizer is called.
      owner: returns the name of a TensorFlow variable that it trains, which its slots follow.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    scope = f"{prefix}/" if inner is None else f"{prefix}{LOSS_SCALE}"
    named = [
        (value, f"{scope}{key.strip('_')}")
        for key, value in vars(optimizer).items()
        if isinstance(value, Variable)
    ]
    for slot in slots_of(optimizer) if inner is None and optimizer.built else ():
        name = owner(tensorflow_variable(slot.trained))
        ending = EMA_SUFFIX if slot.name == "average" else f"/{prefix}/{slot.name}"
        named.append((slot.variable, f"{name}{ending}"))
    created = {id(variable): number for number, variable in enumerate(optimizer.variables)}
    for variable, name in sorted(named, key=lambda pair: created.get(id(pair[0]), len(created))):
        yield variable.value, name
    if isinstance(optimizer, TensorFlow1Optimizer):
        yield from optimizer.state(owner)
    if inner is not None:
        yield from named_state(inner, prefix, owner)


def averages_of(optimizer: keras.optimizers.Optimizer) -> Iterator[tuple[tf.Variable, tf.Variable]]:
    """Yields the weights and their moving averages, of an optimizer that keeps some."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for slot in slots_of(inner) if inner.built else ():
        if slot.name == "average":
            yield tensorflow_variable(slot.trained), slot.variable.value


def learning_rates_of(optimizer: keras.optimizers.Optimizer) -> list[tf.Variable]:
    """Returns the variables that hold constant learning rates."""
    parts = [optimizer, getattr(optimizer, "inner_optimizer", None)]
    return [
        value.value
        for part in parts
        if part is not None
        for key, value in vars(part).items()
        if isinstance(value, Variable) and key.strip("_") == LEARNING_RATE
    ]
