"""Returns the plain values that Keras objects are made from, to record and to tell them apart."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from runner.internals.keras import compiled_with, layers_of, to_snake_case
from runner.planning.optimizer_state import optimizers_of
from runner.system.user_code import ERRORS

# Where users find the classes whose modules are Keras's internal ones.
_PUBLIC = {
    "keras.optimizers": keras.optimizers,
    "keras.optimizers.schedules": keras.optimizers.schedules,
    "keras.losses": keras.losses,
    "keras.metrics": keras.metrics,
}


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


def plain_config(part: Any) -> dict[str, Any]:
    """Returns class and arguments of an object of Keras; its class alone where it does not tell.

    Arguments that have the default of the class are left out, but for the learning rate.
    """
    try:
        config = part.get_config()
    except ERRORS:  # A class of one's own raises what it likes, most often NotImplementedError.
        config = None
    node = _node(_name(type(part)), config if isinstance(config, Mapping) else {})
    parameters = inspect.signature(type(part)).parameters
    defaults = {key: plain(parameter.default) for key, parameter in parameters.items()}
    return {
        key: value
        for key, value in node.items()
        if key == "learning_rate" or key not in defaults or value != defaults[key]
    }


def plain(value: Any) -> Any:
    """Returns a nested value without addresses in memory, and objects by what they are made from.

    Numbers are as float32 prints them, because variables, such as learning rates, hold them so.
    """
    if isinstance(value, Mapping):
        if {"class_name", "config"} <= value.keys():  # As Keras serialises an object.
            names = filter(None, (value.get("module"), value["class_name"]))
            config = value["config"]  # Of a function, its name.
            return _node(".".join(names), config) if isinstance(config, Mapping) else config
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, float) and abs(value) <= float(np.finfo(np.float32).max):
        return float(str(np.float32(value)))
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if hasattr(value, "get_config") and not isinstance(value, type):
        return plain_config(value)
    return _name(value if hasattr(value, "__qualname__") else type(value))


def _node(target: str, config: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {key: plain(value) for key, value in config.items() if value is not None}
    return {"_target_": target, **arguments}


def _name(value: Any) -> str:
    name = value.__qualname__
    for module, members in _PUBLIC.items():
        if getattr(members, name, None) is value:
            return f"{module}.{name}"
    return f"{value.__module__}.{name}"
