"""Computes the initial values of many variables, those that are computed alike by one callable."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.restoration import dtypes
from runner.restoration.assigning import initial_value

tf1 = tf.compat.v1

# Larger variables are few, and their initializers take longer than the optimiser.
LARGEST_BYTES = 1 << 20
# A group that is smaller is not worth a graph of its own.
SMALLEST_GROUP = 16
# What is computed alike is a handful of operations; longer computations are left to the session.
_MOST_OPERATIONS = 64

_RANDOM = {
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
}
_REFUSED = {
    "Placeholder",
    "PlaceholderV2",
    "PlaceholderWithDefault",
    "Enter",
    "Exit",
    "Merge",
    "NextIteration",
    "Switch",
}


@dataclass
class Computation:
    """How a variable's initial value is computed, from nothing that another part of a graph knows.

    Attributes:
      variable: the variable.
      nodes: what is run, in an order in which it can be; names are numbers, and what differs
        between variables that are computed alike is left out.
      leaves: number of a node -> what it gives: a constant, or the operation that draws random
        numbers from a seed of its own.
    """

    variable: tf.Variable
    nodes: list[bytes] = field(default_factory=list)
    leaves: dict[int, bytes | tf.Operation] = field(default_factory=dict)


def groups(variables: Sequence[tf.Variable]) -> list[list[Computation]]:
    """Returns the variables whose initial values are computed alike, in groups.

    Left out are those whose computation is none of its own: it reads variables, is fed, depends on
    state other than a random seed, or shares random numbers with something else.
    """
    found: dict[tuple[bytes, ...], list[Computation]] = {}
    for variable in variables:
        computation = _computation(variable) if _small(variable) else None
        if computation is not None:
            found.setdefault(tuple(computation.nodes), []).append(computation)
    return [each for each in found.values() if len(each) >= SMALLEST_GROUP]


def values(group: Sequence[Computation]) -> Iterator[tuple[tf.Variable, NDArray[Any]]]:
    """Yields the variables of a group with their initial values, whose memory is nobody else's.

    The values are those that a new session of the graph would give: with a seed the same, without
    one independent of each other.
    """
    first = group[0]
    drawn = _draw([leaf for each in group for leaf in each.leaves.values()])
    read = functools.lru_cache(maxsize=1024)(_array)

    def given(leaf: bytes | tf.Operation) -> NDArray[Any]:
        return read(leaf) if isinstance(leaf, bytes) else drawn.pop(leaf.name)

    last = len(first.nodes) - 1
    if last in first.leaves:
        for each in group:
            yield each.variable, np.array(given(each.leaves[last]))
        return
    fed = [
        number
        for number, leaf in first.leaves.items()
        if not isinstance(leaf, bytes) or any(each.leaves[number] != leaf for each in group)
    ]
    with tf.Graph().as_default():
        output, *feeds = _import(first, fed)
        with tf1.Session(config=_config()) as session:
            call = session.make_callable(output, feeds)
            for each in group:
                # A copy: a constant's value would be the memory of an operation of this session.
                yield each.variable, np.array(call(*(given(each.leaves[at]) for at in fed)))


def _small(variable: tf.Variable) -> bool:
    shape, dtype = variable.shape, variable.dtype.base_dtype
    if not shape.is_fully_defined() or dtype == tf.string:
        return False
    return dtypes.size_in_bytes(tuple(shape.as_list()), dtype.name) <= LARGEST_BYTES


def _computation(variable: tf.Variable) -> Computation | None:
    """Returns how the initial value is computed, or None where that is not its own matter."""
    output = initial_value(variable)
    numbers: dict[str, int] = {}
    found = Computation(variable)
    own = {variable.initializer.name}
    shared: list[tf.Operation] = []
    pending = [(output.op, False)]
    while pending:
        op, inputs_done = pending.pop()
        if op.name in numbers:
            continue
        leaf = _is_leaf(op)
        if not leaf and not inputs_done:
            if not _allowed(op) or len(numbers) + len(pending) > _MOST_OPERATIONS:
                return None
            pending.append((op, True))
            pending += [(each.op, False) for each in op.inputs]
            continue
        if op.control_inputs:
            return None
        number = numbers[op.name] = len(numbers)
        own.add(op.name)
        node = op.node_def
        if op.type in _RANDOM or any(each.op in shared for each in op.inputs):
            shared.append(op)
        if op.type == "Const":
            found.leaves[number] = node.attr["value"].SerializeToString()
            node.attr.pop("value")
        elif leaf:
            found.leaves[number] = op
            for each in list(node.attr):
                if each != "dtype":
                    node.attr.pop(each)
        node.attr.pop("_class", None)
        node.name, node.device = str(number), ""
        del node.input[:]
        if not leaf:
            node.input.extend(f"{numbers[i.op.name]}:{i.value_index}" for i in op.inputs)
        found.nodes.append(node.SerializeToString(deterministic=True))
    consumers = (user.name for op in shared for out in op.outputs for user in out.consumers())
    if output.value_index or any(name not in own for name in consumers):
        return None
    return found


def _is_leaf(op: tf.Operation) -> bool:
    """Returns whether the operation is a constant, or draws from a seed of its own."""
    if op.type == "Const":
        return True
    return (
        op.type in _RANDOM
        and bool(op.get_attr("seed") or op.get_attr("seed2"))
        and all(each.op.type == "Const" for each in op.inputs)
    )


def _allowed(op: tf.Operation) -> bool:
    return op.type in _RANDOM or not (op.type in _REFUSED or _stateful(op))


_STATEFUL: dict[str, bool] = {}


def _stateful(op: tf.Operation) -> bool:
    """Returns whether operations of this type have state, or call functions that may have."""
    if op.type not in _STATEFUL:
        definition = op.op_def
        _STATEFUL[op.type] = definition.is_stateful or any(
            "func" in each.type for each in definition.attr
        )
    kept = (tf.resource, tf.variant)
    return _STATEFUL[op.type] or any(
        each.dtype in kept or each.dtype._is_ref_dtype for each in (*op.inputs, *op.outputs)
    )


def _import(computation: Computation, fed: Sequence[int]) -> list[tf.Tensor]:
    """Adds the nodes to the default graph; returns the value and the nodes that are fed."""
    definition = tf1.GraphDef()
    for number, serialized in enumerate(computation.nodes):
        node = definition.node.add()
        node.ParseFromString(serialized)
        node.name = f"n{number}"
        node.input[:] = [f"n{each}" for each in node.input]
        if number in fed:
            node.op = "Placeholder"
        elif number in computation.leaves:
            node.attr["value"].ParseFromString(computation.leaves[number])
    wanted = [len(computation.nodes) - 1, *fed]
    return list(
        tf.graph_util.import_graph_def(
            definition, name="", return_elements=[f"n{each}:0" for each in wanted]
        )
    )


def _draw(leaves: Sequence[bytes | tf.Operation]) -> dict[str, NDArray[Any]]:
    """Returns name of an operation -> the first numbers that it draws in a session."""
    operations = [each for each in leaves if not isinstance(each, bytes)]
    if not operations:
        return {}
    definition = tf1.GraphDef()
    constants: dict[bytes, str] = {}
    for number, op in enumerate(operations):
        node = op.node_def
        node.attr.pop("_class", None)
        node.name, node.device = f"n{number}", ""
        names = []
        for each in op.inputs:
            value = each.op.node_def
            value.attr.pop("_class", None)
            value.name, value.device = "", ""
            key = value.SerializeToString(deterministic=True)
            if key not in constants:
                constants[key] = value.name = f"c{len(constants)}"
                definition.node.add().CopyFrom(value)
            names.append(constants[key])
        node.input[:] = names
        definition.node.add().CopyFrom(node)
    fetches = [f"n{number}:0" for number in range(len(operations))]
    with tf.Graph().as_default():
        tensors = tf.graph_util.import_graph_def(definition, name="", return_elements=fetches)
        with tf1.Session(config=_config()) as session:
            drawn = session.run(tensors)
    return {op.name: value for op, value in zip(operations, drawn, strict=True)}


def _config() -> tf.compat.v1.ConfigProto:
    """Returns the configuration of a session that runs everything once."""
    config = tf1.ConfigProto(device_count={"GPU": 0})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def _array(serialized: bytes) -> NDArray[Any]:
    value: NDArray[Any] = tf.make_ndarray(tf1.AttrValue.FromString(serialized).tensor)
    return value
