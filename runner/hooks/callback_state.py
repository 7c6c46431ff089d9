"""The state of Keras callbacks as bytes, which a checkpoint holds and nothing executes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from runner.internals.keras import Variable

# Keras sets these in every process.
_NOT_STATE = ("_model", "params")
_VARIABLES = (tf.Variable, Variable)
# Callbacks of Keras choose one when they compare first, and change other attributes with it.
_COMPARISONS = {"less": keras.ops.less, "greater": keras.ops.greater}


def attributes(
    callback: keras.callbacks.Callback, is_of_model: Callable[[Any], bool]
) -> dict[str, Any]:
    """Returns the attributes of a callback that can be saved: numbers, strings, arrays, nested.

    Args:
      callback: the callback.
      is_of_model: tells variables of the model, which checkpoints hold anyway.
    """
    return {
        name: value
        for name, value in vars(callback).items()
        if name not in _NOT_STATE
        and all(_is_plain(leaf) and not is_of_model(leaf) for leaf in _leaves(value))
    }


def unsaved(callback: keras.callbacks.Callback) -> list[str]:
    """Returns the attributes of one's own callback that may be state and cannot be saved."""
    if type(callback).__module__.startswith("keras."):
        return []
    built_again = (keras.Layer, keras.optimizers.Optimizer, tf.data.Dataset, tf.Tensor)
    return [
        name
        for name, value in vars(callback).items()
        if name not in _NOT_STATE
        and any(
            not (_is_plain(leaf) or callable(leaf) or isinstance(leaf, built_again))
            for leaf in _leaves(value)
        )
    ]


def restore(callback: keras.callbacks.Callback, saved: Mapping[str, Any]) -> None:
    """Sets the attributes of a callback; a variable keeps its identity."""
    for name, value in saved.items():
        present = getattr(callback, name, None)
        if isinstance(present, _VARIABLES):
            present.assign(value)
        else:
            setattr(callback, name, value)


def dumped(state: Any) -> bytes:
    """Returns nested mappings, lists and tuples of numbers, strings, arrays and variables."""
    arrays: list[Any] = []
    tree = json.dumps(_encoded(state, arrays))
    buffer = io.BytesIO()
    named = {f"array_{index}": array for index, array in enumerate(arrays)}
    np.savez(buffer, tree=np.array(tree), **named)
    return buffer.getvalue()


def loaded(content: bytes) -> Any:
    """Returns the state in the bytes of `dumped`, with arrays in place of variables."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return _decoded(json.loads(str(file["tree"])), file)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from (leaf for pair in value.items() for item in pair for leaf in _leaves(item))
    elif type(value) in (list, tuple):
        yield from (leaf for item in value for leaf in _leaves(item))
    else:
        yield value


def _is_plain(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray | np.generic):
        return not leaf.dtype.hasobject
    is_comparison = any(leaf is comparison for comparison in _COMPARISONS.values())
    return leaf is None or is_comparison or isinstance(leaf, (bool, int, float, str, *_VARIABLES))


def _encoded(value: Any, arrays: list[Any]) -> Any:
    if isinstance(value, Mapping):
        pairs = [[_encoded(key, arrays), _encoded(item, arrays)] for key, item in value.items()]
        return {"mapping": pairs}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_encoded(item, arrays) for item in value]}
    if callable(value) and not isinstance(value, _VARIABLES):
        return {"comparison": value.__name__}
    if isinstance(value, (np.ndarray, np.generic, *_VARIABLES)):
        scalar = isinstance(value, np.generic)
        arrays.append(value.numpy() if isinstance(value, _VARIABLES) else value)
        return {"scalar" if scalar else "array": len(arrays) - 1}
    return value


def _decoded(value: Any, arrays: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "mapping":
        return {_decoded(key, arrays): _decoded(item, arrays) for key, item in content}
    if kind == "comparison":
        return _COMPARISONS[content]
    if kind in ("array", "scalar"):
        array = arrays[f"array_{content}"]
        return array[()] if kind == "scalar" else array
    items = [_decoded(item, arrays) for item in content]
    return tuple(items) if kind == "tuple" else items
