"""Plans the fetches and feeds of a call of `Session.run` for the calls that follow it.

It also lists the operations that such a call runs.
"""

from __future__ import annotations

import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from runner.internals.tensorflow import called_functions, function_nodes

# Takes the values of the distinct tensors and returns them in the structure of the fetches.
Build: TypeAlias = Callable[[Sequence[Any]], Any]


_LEAF, _SEQUENCE, _MAPPING, _UNUSUAL = "leaf", "sequence", "mapping", "unusual"
# The kinds of the classes seen in fetches so far.
_KINDS: dict[type, str] = {list: _SEQUENCE, tuple: _SEQUENCE, dict: _MAPPING, OrderedDict: _MAPPING}


def append_key(structure: Any, key: list[Any]) -> bool:
    """Appends to `key` the parts that distinguish the structure; equal keys fetch the same.

    Graph elements count by identity, so a key is valid for as long as they are alive. If False
    is returned, the key is of no use.

    Returns:
      Whether the structure consists of lists, tuples, named tuples and dictionaries of tensors,
      operations and variables.
    """
    structure_class = type(structure)
    kind = _KINDS.get(structure_class) or _classify(structure_class)
    if kind is _LEAF:
        key.append(id(structure))
        return True
    if kind is _UNUSUAL:
        return False
    key += (structure_class, len(structure))
    parts = structure
    if kind is _MAPPING:
        # 1, 1.0 and True are equal, but not the same key of a result.
        key += map(type, structure)
        key += structure
        parts = structure.values()
    for part in parts:  # A loop, and leaves without a call: half the time of `all` and recursion.
        if _KINDS.get(type(part)) is _LEAF:
            key.append(id(part))
        elif not append_key(part, key):
            return False
    return True


def _classify(structure_class: type) -> str:
    if issubclass(structure_class, (tf.Tensor, tf.Operation, tf.Variable)):
        kind = _LEAF
    elif issubclass(structure_class, tuple) and hasattr(structure_class, "_fields"):
        kind = _SEQUENCE  # A named tuple.
    else:
        kind = _UNUSUAL  # Other classes of lists and dictionaries may have other constructors.
    _KINDS[structure_class] = kind
    return kind


class FetchPlan:
    """The elements of a structure of fetches that `append_key` accepts.

    Attributes:
      tensors: the distinct tensors by name, in order of appearance.
      operations: the distinct operations by name.
      leaves: the elements whose identity is part of the key of the structure.
      build: returns the values of `tensors` in the structure, and None for each operation. It is
        None where only `Session.run` can fetch or refuse: an element of another graph, one that may
        not be fetched, a handle, nothing at all.
    """

    def __init__(self, structure: Any, graph: tf.Graph) -> None:
        self._graph = graph
        self.tensors: dict[str, tf.Tensor] = {}
        self.operations: dict[str, tf.Operation] = {}
        self.leaves: list[Any] = []
        build = self._plan(structure)
        self.build = build if self.leaves else None

    def _plan(self, structure: Any) -> Build | None:
        kind = _KINDS[type(structure)]
        if kind is _LEAF:
            return self._plan_leaf(structure)
        parts = structure.values() if kind is _MAPPING else structure
        builds = [self._plan(part) for part in parts]
        known = [build for build in builds if build is not None]
        if len(known) < len(builds):
            return None
        names = tuple(structure) if kind is _MAPPING else None
        return _container(type(structure), names, known)

    def _plan_leaf(self, leaf: Any) -> Build | None:
        if not _belongs(leaf, self._graph):
            return None
        self.leaves.append(leaf)
        element = self._graph.as_graph_element(leaf)
        if isinstance(element, tf.Operation):
            self.operations[element.name] = element
            return (lambda values: None) if self._graph.is_fetchable(element) else None
        handle = element.op.type.startswith("GetSessionHandle")
        if handle or not self._graph.is_fetchable(element.op):
            return None
        if element.dtype in (tf.resource, tf.variant):
            return None
        self.tensors.setdefault(element.name, element)
        return operator.itemgetter(list(self.tensors).index(element.name))


def _container(kind: type, names: Sequence[Any] | None, builds: Sequence[Build]) -> Build:
    if names is not None:
        return lambda values: kind(zip(names, [build(values) for build in builds], strict=True))
    if kind in (list, tuple):
        return lambda values: kind([build(values) for build in builds])
    return lambda values: kind(*[build(values) for build in builds])


_Array: TypeAlias = npt.NDArray[Any]


class Feed:
    """Converts the values fed to one tensor."""

    def __init__(self, tensor: tf.Tensor) -> None:
        self.tensor = tensor
        self._dtype = np.dtype(tensor.dtype.as_numpy_dtype)
        # A list of sizes: comparing with TensorFlow's shapes takes 4 us.
        self._sizes = None if tensor.shape.rank is None else tensor.shape.as_list()

    def convert(self, value: Any) -> _Array | None:
        """Returns the value as an array of the tensor's dtype.

        It returns None for values that `Session.run` refuses or converts differently: an integer
        that the dtype cannot hold, a tensor, a handle, a shape that does not fit.
        """
        if type(value) is np.ndarray and value.dtype is self._dtype:
            array: _Array | None = value
        else:
            array = self._as_array(value)
        return array if array is not None and self._fits(array.shape) else None

    def _fits(self, shape: tuple[int, ...]) -> bool:
        sizes = self._sizes
        return sizes is None or (
            len(sizes) == len(shape)
            and all(size in (None, length) for size, length in zip(sizes, shape, strict=True))
        )

    def _as_array(self, value: Any) -> _Array | None:
        if not isinstance(value, (np.ndarray, np.generic, float, int, list, tuple, str, bytes)):
            return None
        try:
            if not isinstance(value, int):
                return np.asarray(value, self._dtype)
            if self._dtype.kind == "O":
                return None
            array = np.array(value).astype(self._dtype)
        except (TypeError, ValueError, OverflowError):
            return None  # Session.run fails likewise, with a message.
        return array if array == value else None


def plan_feeds(keys: Iterable[Any], graph: tf.Graph) -> tuple[Feed, ...] | None:
    """Returns the converters of the values fed to these keys.

    None if a key is not a plain tensor of the graph that may be fed.
    """
    feeds = []
    for key in keys:
        if not isinstance(key, tf.Tensor) or not _belongs(key, graph) or not graph.is_feedable(key):
            return None
        if key.dtype != key.dtype.base_dtype or key.dtype in (tf.resource, tf.variant):
            return None
        feeds.append(Feed(key))
    return tuple(feeds)


def convert_all(feeds: Sequence[Feed], values: Iterable[Any]) -> list[_Array] | None:
    """Returns the values as arrays, or None if one of them cannot be converted here."""
    arrays = []
    for feed, value in zip(feeds, values, strict=True):
        array = feed.convert(value)
        if array is None:
            return None
        arrays.append(array)
    return arrays


def _belongs(element: Any, graph: tf.Graph) -> bool:
    return getattr(element, "graph", None) is graph  # Eager tensors belong to no graph.


def operations_for(elements: Iterable[tf.Operation | tf.Tensor]) -> dict[tf.Operation, None]:
    """Returns the operations that run to fetch elements of a graph, nearest first."""
    reached = dict.fromkeys(getattr(element, "op", element) for element in elements)
    pending = deque(reached)
    while pending:
        operation = pending.popleft()
        for dependency in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
            if dependency not in reached:
                reached[dependency] = None
                pending.append(dependency)
    return reached


def operations_run(elements: Iterable[tf.Operation | tf.Tensor]) -> Iterator[tuple[str, str]]:
    """Yields the type and name of every operation that runs to fetch elements, in functions too.

    A call of a function is no operation.
    """
    functions: set[str] = set()
    for operation in operations_for(elements):
        yield operation.type, operation.name
        yield from _called(operation.graph, operation.node_def, functions)


def _called(
    graph: tf.Graph, node: tf.compat.v1.NodeDef, seen: set[str]
) -> Iterator[tuple[str, str]]:
    for name in called_functions(node):
        if name not in seen:
            seen.add(name)
            for inner in function_nodes(graph, name):
                yield inner.op, f"{node.name}/{inner.name}"
                yield from _called(graph, inner, seen)
