"""Lets the preprocessing layers of Keras adapt while a model is built in a graph.

`adapt` reads data eagerly and then assigns variables and tables, and a layer's vocabulary is read
from its table. A graph can do none of that before it has a session. So a copy of the layer adapts
eagerly, in a thread of its own, and the layer in the graph takes what the copy has learnt.

`tests/unit/internals/test_preprocessing.py` fails when Keras changes what this rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf

# `StringLookup` and `IntegerLookup` are its public subclasses; `TextVectorization` holds one. All
# vocabularies pass its private methods.
from keras.src.layers.preprocessing.index_lookup import IndexLookup

_ADAPTING = (
    keras.layers.Normalization,
    keras.layers.Discretization,
    keras.layers.TextVectorization,
    IndexLookup,
)
# Layer of a graph -> the tokens of its vocabulary, without the special ones.
_TOKENS: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


@contextmanager
def adapting_in_graphs() -> Iterator[None]:
    """Lets layers adapt and tell their vocabularies within the block, also in a graph."""
    with ExitStack() as stack:
        for layer_class in _ADAPTING:
            stack.enter_context(_replaced(layer_class, "adapt", _adapt))
        stack.enter_context(_replaced(IndexLookup, "_lookup_table_from_tokens", _table_of_tokens))
        stack.enter_context(_replaced(IndexLookup, "_lookup_table_from_file", _table_of_file))
        stack.enter_context(_replaced(IndexLookup, "vocabulary_size", _vocabulary_size))
        stack.enter_context(_replaced(IndexLookup, "get_vocabulary", _vocabulary))
        yield


def _replaced(layer_class: Any, method: str, function: Callable[..., Any]) -> Any:
    """Replaces a method by a function of Keras's, the layer and the arguments, in graphs only."""
    original = getattr(layer_class, method)

    @wraps(original)
    def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            return original(layer, *args, **kwargs)
        return function(original, layer, *args, **kwargs)

    return patch.object(layer_class, method, called)


def _adapt(original: Callable[..., None], layer: Any, data: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(layer, keras.layers.Normalization) and layer.built:
        original(layer, data, *args, **kwargs)
        return
    config = {name: item for name, item in layer.get_config().items() if name != "vocabulary_size"}
    if config.get("num_bins") is not None:
        del config["bin_boundaries"]  # Keras 3.8 returns both, and takes one.
    eager_data = _outside_of_graph(data)

    def learn() -> dict[str, Any]:
        # `from_config` of a text's layer takes no functions, which `get_config` gives.
        of_text = isinstance(layer, keras.layers.TextVectorization)
        copy = type(layer)(**config) if of_text else type(layer).from_config(config)
        copy.adapt(eager_data(), *args, **kwargs)
        return _learnt(copy)

    # Another thread has no default graph, and names of its own.
    with ThreadPoolExecutor(1) as thread:
        learnt = thread.submit(learn).result()
    if isinstance(layer, keras.layers.Normalization):
        _build(layer, **learnt)
    elif isinstance(layer, keras.layers.Discretization):
        layer.bin_boundaries = learnt["bin_boundaries"]
    else:
        layer.set_vocabulary(**learnt)


def _learnt(layer: Any) -> dict[str, Any]:
    """Returns what a layer has learnt from its data, as plain values."""
    if isinstance(layer, keras.layers.Normalization):
        values = {variable.name: variable.numpy() for variable in layer.variables}
        return {"shape": layer._build_input_shape, "values": values}
    if isinstance(layer, keras.layers.Discretization):
        return {"bin_boundaries": layer.bin_boundaries}
    lookup = getattr(layer, "_lookup_layer", layer)
    weights = lookup.idf_weights.numpy() if lookup.output_mode == "tf_idf" else None
    return {"vocabulary": np.array(layer.get_vocabulary()), "idf_weights": weights}


def _build(layer: Any, shape: Any, values: Mapping[str, Any]) -> None:
    """Builds a `Normalization`, whose variables start from values."""
    add_weight = layer.add_weight

    def add_adapted(name: str, **arguments: Any) -> Any:
        arguments["initializer"] = keras.initializers.Constant(values[name])
        return add_weight(name=name, **arguments)

    layer.add_weight = add_adapted
    layer.build(shape)
    del layer.add_weight


def _outside_of_graph(data: Any) -> Callable[[], Any]:
    """Returns a function that returns the same data eagerly; a session reads those of a graph."""
    if tf.is_tensor(data):
        with tf.compat.v1.Session() as session:
            value = session.run(data)
        return lambda: value
    if not isinstance(data, tf.data.Dataset):
        return lambda: data
    graph = tf.compat.v1.get_default_graph()
    iterator = tf.compat.v1.data.make_initializable_iterator(data)
    element, begin = iterator.get_next(), [iterator.initializer, tf.compat.v1.tables_initializer()]

    def read() -> Iterator[Any]:
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(begin)
            while True:
                try:
                    yield session.run(element)
                except tf.errors.OutOfRangeError:
                    return

    return lambda: tf.data.Dataset.from_generator(read, output_signature=data.element_spec)


def _table_of_tokens(original: Callable[..., Any], layer: Any, tokens: Any) -> Any:
    if not tf.is_tensor(tokens):
        _TOKENS[layer] = np.asarray(tokens).tolist()
    return original(layer, tokens)


def _table_of_file(original: Callable[..., Any], layer: Any, filename: str) -> Any:
    with tf.io.gfile.GFile(filename) as file:
        lines = file.read().splitlines()
    _TOKENS[layer] = [int(line) if layer.vocabulary_dtype != "string" else line for line in lines]
    return original(layer, filename)


def _vocabulary_size(original: Callable[..., Any], layer: Any) -> Any:
    if layer not in _TOKENS:
        return original(layer)
    return len(_TOKENS[layer]) + layer._token_start_index()


def _vocabulary(
    original: Callable[..., Any], layer: Any, include_special_tokens: bool = True
) -> Sequence[Any]:
    if layer not in _TOKENS:
        return original(layer, include_special_tokens)  # type: ignore[no-any-return]
    masks = [layer.mask_token] * layer._oov_start_index()
    special = [*masks, *[layer.oov_token] * layer.num_oov_indices]
    return [*(special if include_special_tokens else ()), *_TOKENS[layer]]
