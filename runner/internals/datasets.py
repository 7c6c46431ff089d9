"""The private API of TensorFlow's datasets that the runner uses, each use with its reason."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.eager import context

from runner.errors import ConfigError
from runner.internals.tensorflow import called_functions, clear_local_devices, inner_graphs

# Graph -> the eager datasets that it has taken over.
_DATASETS: WeakKeyDictionary[tf.Graph, list[tf.data.Dataset]] = WeakKeyDictionary()


def dataset_in_graph(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns an eager dataset as one of the default graph, whose position can be saved.

    Constants, tables and Python functions that its functions capture come along. Nothing public
    takes an eager dataset into a graph.
    """
    if tf.is_symbolic_tensor(dataset._variant_tensor):
        return dataset  # It was made in the graph.
    definition = _dataset_graph(dataset)
    clear_local_devices(definition)
    (result,) = (node for node in definition.node if node.op == "_Retval")
    source = result.input[0] if ":" in result.input[0] else f"{result.input[0]}:0"
    definition.node.remove(result)
    (variant,) = tf.import_graph_def(definition, return_elements=[source], name="dataset")
    # The graph names Python functions, which live as long as the dataset that was made with them.
    _DATASETS.setdefault(tf.compat.v1.get_default_graph(), []).append(dataset)
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


# Operations that may make a dataset without end, within a function of another dataset.
_ENDLESS = {"GeneratorDataset", "RandomDataset", "RepeatDataset"}


def surely_ends(dataset: tf.data.Dataset) -> bool:
    """Returns whether an eager dataset ends for sure; nothing public tells what it is made of."""
    length = dataset.cardinality()
    if length != tf.data.UNKNOWN_CARDINALITY:
        return bool(length != tf.data.INFINITE_CARDINALITY)
    kinds, captured = _in_functions(dataset)
    # A function may return a dataset that it captures.
    may_end = kinds.isdisjoint(_ENDLESS) and tf.variant not in captured
    return may_end and all(map(surely_ends, dataset._inputs()))


def reads_generator(dataset: tf.data.Dataset) -> bool:
    """Returns whether a Python generator makes an eager dataset, whose position nothing saves."""
    has_generator = "GeneratorDataset" in _in_functions(dataset)[0]
    return has_generator or any(map(reads_generator, dataset._inputs()))


def uses_other_devices(dataset: tf.data.Dataset) -> bool:
    """Returns whether a function of an eager dataset uses a variable that is not on the CPU.

    Such as the seed of a layer that was made on a GPU. TensorFlow writes no such dataset into a
    graph.
    """
    handles = [
        captured
        for wrapper in dataset._functions()
        for captured, _ in wrapper.function.graph.captures
        if captured.dtype == tf.resource
    ]
    elsewhere = any(not handle.device.endswith("CPU:0") for handle in handles)
    return elsewhere or any(map(uses_other_devices, dataset._inputs()))


def draws_at_start(dataset: tf.data.Dataset) -> bool:
    """Returns whether every iterator of an eager dataset draws random numbers when it is made."""
    draws = type(dataset).__name__ in ("_ShuffleDataset", "_RandomDataset")
    return draws or any(map(draws_at_start, dataset._inputs()))


def _in_functions(dataset: tf.data.Dataset) -> tuple[set[str], set[tf.DType]]:
    """Returns the types of the operations in a dataset's functions, and of what these capture."""
    graphs = [wrapper.function.graph for wrapper in dataset._functions()]
    graphs += [inner for graph in graphs for inner in inner_graphs(graph)]
    captured = {tensor.dtype for graph in graphs for tensor, _ in graph.captures}
    return {node.type for graph in graphs for node in graph.get_operations()}, captured


def _dataset_graph(dataset: tf.data.Dataset) -> tf.compat.v1.GraphDef:
    """Returns the graph that makes an eager dataset.

    Raises:
      ConfigError: when it cannot be written, or captures what no other session can hold.
    """
    try:
        with context.eager_mode():
            serialized = tf.raw_ops.DatasetToGraphV2(
                input_dataset=dataset._variant_tensor,
                external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE.value,
                strip_device_assignment=True,
            ).numpy()
    except tf.errors.OpError as error:
        raise ConfigError.of(
            "data: a tf.data.Dataset cannot be taken over into the run",
            str(error.message).partition("\n")[0],
            "let its functions use tensors, variables, lookup tables and Python functions; give "
            "arrays of more than 2 GB as arrays, not as a Dataset",
        ) from error
    definition = tf.compat.v1.GraphDef.FromString(serialized)
    for node in definition.node:
        # Others are parts of datasets themselves, such as the seeds of a shuffle.
        functions = [called_functions(user) for user in definition.node if _reads(user, node)]
        if any(functions):
            raise _not_taken_over(node, *functions)
    return definition


def _reads(user: tf.compat.v1.NodeDef, node: tf.compat.v1.NodeDef) -> bool:
    """Whether a node has an object of TensorFlow that a constant stands for as an input."""
    is_object = node.op == "Const" and node.attr["dtype"].type == tf.resource.as_datatype_enum
    return is_object and node.name in (entry.partition(":")[0] for entry in user.input)


def _not_taken_over(node: tf.compat.v1.NodeDef, *functions: Sequence[str]) -> ConfigError:
    """Returns the error that names an object captured by a function of a dataset."""
    kind = node.attr["value"].tensor.resource_handle_val[0].maybe_type_name
    named = re.search(r"([A-Z][A-Za-z]+?)(?:Resource)?E?$", kind)
    functions_of_user = [name for names in functions for name in names]
    where = [re.sub(r"^__inference_Dataset_|_\d+$", "", name) for name in functions_of_user]
    return ConfigError.of(
        f"data: {', '.join(where)} of a tf.data.Dataset uses an object made outside of it, "
        f"{named[1] if named else kind}",
        "a session reads the data, and takes over tensors, variables and lookup tables only",
        "combine datasets by tf.data.Dataset.zip instead of reading one within another",
    )


def dataset_constants(dataset: tf.data.Dataset) -> tuple[list[str], list[NDArray[Any]]]:
    """Returns the kinds of an eager dataset's operations, and its constants but for state."""
    definition = _dataset_graph(dataset)
    nodes = [*definition.node]
    functions = (function.node_def for function in definition.library.function)
    kinds = [node.op for node in itertools.chain(nodes, *functions)]
    seeds = {
        entry.partition(":")[0]
        for node in nodes
        if any(name in node.op for name in ("Shuffle", "Random", "Seed", "AssignVariable"))
        for entry in node.input
    }
    tensors = [
        node.attr["value"].tensor
        for node in nodes
        if node.op == "Const"
        and node.name not in seeds
        and tf.as_dtype(node.attr["dtype"].type) not in (tf.resource, tf.variant)
    ]
    with context.eager_mode():  # `tf.make_ndarray` cannot read all strings.
        return kinds, [
            np.asarray(tf.io.parse_tensor(tensor.SerializeToString(), tensor.dtype).numpy())
            for tensor in tensors
        ]
