"""A Keras model that a call of `runner.fit` is given, in place of a function that builds it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from runner.internals.keras import compiled_with, layers_of, to_snake_case
from runner.internals.tensorflow import give, is_freed
from runner.planning.optimizer_state import learning_rates_of, optimizers_of
from runner.system.user_code import ERRORS


def model_digest(model: keras.Model) -> str:
    """Returns 12 hexadecimal digits that tell models apart by architecture and compilation.

    The values of their weights, which another process draws again, do not count.
    """
    layers = [
        [_kind(layer), layer.name, _config(layer), [str(v.shape) for v in layer.weights]]
        for layer in layers_of(model)
    ]
    compiled = dict(compiled_with(model))
    compiled.pop("auto_scale_loss", None)
    optimizers = [[name, _config(optimizer)] for name, optimizer in optimizers_of(model)]
    content = json.dumps([layers, _plain(compiled), optimizers], sort_keys=True, default=str)
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


def _config(part: Any) -> Any:
    """Returns what a layer or an optimizer is made from; its class alone where it does not tell."""
    try:
        return [_kind(part), _plain(part.get_config())]
    except ERRORS:  # A class of one's own raises what it likes, most often NotImplementedError.
        return [_kind(part)]


def _plain(value: Any) -> Any:
    """Returns a nested value without addresses in memory and values of weights."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if hasattr(value, "get_config"):
        return _config(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
