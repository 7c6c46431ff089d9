"""A Keras model that a call of `runner.fit` is given, in place of a function that builds it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from runner.graph.plain_config import plain, plain_config
from runner.internals.keras import compiled_with, layers_of, to_snake_case
from runner.internals.tensorflow import give, is_freed
from runner.planning.optimizer_state import learning_rates_of, optimizers_of


def model_digest(model: keras.Model) -> str:
    """Returns 12 hexadecimal digits that tell models apart by architecture and compilation.

    The values of their weights, which another process draws again, do not count.
    """
    layers = [
        [layer.name, plain_config(layer), [str(v.shape) for v in layer.weights]]
        for layer in layers_of(model)
    ]
    compiled = dict(compiled_with(model))
    compiled.pop("auto_scale_loss", None)
    optimizers = [[name, plain_config(optimizer)] for name, optimizer in optimizers_of(model)]
    content = json.dumps([layers, plain(compiled), optimizers], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def model_name(model: keras.Model) -> str:
    """Returns the name of a model, without the number that Keras counts in the process."""
    name = str(model.name)
    without = re.sub(r"_\d+$", "", name)
    return without if without == to_snake_case(type(model).__name__) else name


@contextmanager
def left_usable(model: keras.Model) -> Iterator[None]:
    """Gives slots that the block has freed their zeros again.

    Where it fails, it puts learning rates back too, so that the same call resumes its run.
    """
    rates = [rate for _, optimizer in optimizers_of(model) for rate in learning_rates_of(optimizer)]
    values = [rate.numpy() for rate in rates]
    try:
        yield
    except BaseException:
        for rate, value in zip(rates, values, strict=True):
            rate.assign(value)
        raise
    finally:
        for _, optimizer in optimizers_of(model):
            for slot in (variable.value for variable in optimizer.variables):
                if is_freed(slot):
                    give(slot, tf.zeros(slot.shape, slot.dtype))
