"""Finds what steps capture of layers: lookup tables, and things that no session can hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import Any

import keras
import tensorflow as tf

from runner.errors import ConfigError
from runner.internals.keras import Variable

_TABLES = (tf.lookup.StaticHashTable, tf.lookup.experimental.MutableHashTable)


def tables_of(layers: Iterable[Any]) -> list[Any]:
    """Returns the lookup tables that layers hold in attributes, and in the objects there."""
    held = (value for layer in layers for _, value in _held_by(layer))
    return [value for value in held if isinstance(value, _TABLES)]


def _held_by(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of a layer, with what their values hold, by the attributes' names."""
    for attribute, value in vars(layer).items():
        if attribute.startswith("_self_") or isinstance(value, keras.Layer):
            continue  # TensorFlow's records of the same objects, and layers that are listed too.
        parts = [value]
        if isinstance(value, Mapping):
            parts += value.values()
        elif isinstance(value, list | tuple):
            parts += value
        for part in parts:
            yield attribute, part
            for inner in getattr(part, "__dict__", {}).values():
                yield attribute, inner


def made_before_restoring(
    layers: Iterable[Any], captured: Collection[int], restored: Set[int]
) -> Iterator[str]:
    """Yields a line for each tensor of a layer that may depend on its restored variables.

    Layers of Keras derive such tensors again, in `finalize_state`.

    Args:
      layers: the layers.
      captured: the `id`s of the tensors that steps use.
      restored: the `id`s of the variables that a checkpoint gives their values.
    """
    for layer in layers:
        is_of_keras = type(layer).__module__.partition(".")[0] == "keras"
        if is_of_keras or restored.isdisjoint(map(id, _variables_in(layer))):
            continue
        for attribute, value in _held_by(layer):
            if isinstance(value, tf.Tensor) and id(value) in captured:
                yield (
                    f"{layer.name}.{attribute}: a tensor from before {layer.name} is restored; if "
                    "it depends on variables, compute it in call"
                )


def _variables_in(layer: Any) -> Iterator[tf.Variable]:
    """Yields the variables of a layer itself, without the variables of the layers in it."""
    for value in vars(layer).values():
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, Variable):
                yield part.value


def not_importable(captured: tf.Tensor, layers: Iterable[Any]) -> ConfigError:
    """Returns the error of a tensor that no session can hold, with the layer that holds it."""
    holder = "an iterator, a table or another resource that no layer holds"
    for layer in layers:
        for attribute, value in _held_by(layer):
            if value is captured:
                kind = type(getattr(layer, attribute)).__name__
                holder = f"{layer.name}.{attribute}, of type {kind}"
    return ConfigError.of(
        f"model: a step uses {holder}, which a run cannot take over",
        "it was made outside of the step; a run takes variables, constants, and the lookup tables "
        "in attributes of the model or of one of its layers",
        "use a tf.lookup.StaticHashTable or MutableHashTable in an attribute, and read data "
        "through the batch that the step gets",
    )
