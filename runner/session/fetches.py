"""Keys and builders of the nested structures that `Session.run` fetches."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

# Takes the values of the distinct tensors and returns them in the structure of the fetches.
Build = Callable[[Sequence[Any]], Any]


class _Kind(Enum):
    LEAF = 0
    SEQUENCE = 1
    MAPPING = 2
    UNUSUAL = 3


_LEAF, _SEQUENCE, _MAPPING = _Kind.LEAF, _Kind.SEQUENCE, _Kind.MAPPING
_CONTAINERS: dict[type, _Kind] = {
    list: _SEQUENCE,
    tuple: _SEQUENCE,
    dict: _MAPPING,
    OrderedDict: _MAPPING,
}
# Filled with the few classes that tensors, operations and variables have.
_LEAF_TYPES: set[type] = set()


@dataclass(frozen=True)
class FetchPlan:
    """What a structure of fetches asks for.

    Attributes:
      tensors: the distinct tensors, in order of appearance.
      operations: the distinct operations.
      leaves: the elements by whose identity the key of the structure tells it from others.
      build: returns the values of `tensors` in the structure, and None for each operation.
    """

    tensors: tuple[tf.Tensor, ...]
    operations: tuple[tf.Operation, ...]
    leaves: tuple[Any, ...]
    build: Build


def append_key(structure: Any, key: list[Any]) -> bool:
    """Appends to `key` what tells the structure from others; two equal keys fetch the same.

    Graph elements count by identity, so a key is good for as long as they are kept alive. What
    `plan_fetches` does not know is refused: then the key is of no use.

    Returns:
      Whether the structure consists of lists, tuples, named tuples and dictionaries of tensors,
      operations and variables.
    """
    kind = type(structure)
    if kind in _LEAF_TYPES:
        key.append(id(structure))
        return True
    found = _CONTAINERS.get(kind) or _classify(kind)
    if found is _LEAF:
        key.append(id(structure))
        return True
    key.append(kind)
    key.append(len(structure) if found in (_SEQUENCE, _MAPPING) else 0)
    if found is _SEQUENCE:
        for part in structure:
            if type(part) in _LEAF_TYPES:
                key.append(id(part))
            elif not append_key(part, key):
                return False
        return True
    if found is _MAPPING:
        for name, part in structure.items():
            # 1, 1.0 and True are equal keys, but not the same key of a result.
            key.append(type(name))
            key.append(name)
            if type(part) in _LEAF_TYPES:
                key.append(id(part))
            elif not append_key(part, key):
                return False
        return True
    return False


def plan_fetches(structure: Any, graph: tf.Graph) -> FetchPlan | None:
    """Returns the plan of a structure that `append_key` accepts.

    None says that `Session.run` itself has to see to it: an element of another graph, one that may
    not be fetched, a handle, nothing at all.
    """
    planner = _Planner(graph)
    build = planner.plan(structure)
    if build is None or not planner.leaves:
        return None
    return FetchPlan(
        tuple(planner.tensors.values()),
        tuple(planner.operations.values()),
        tuple(planner.leaves),
        build,
    )


def _classify(kind: type) -> _Kind:
    if issubclass(kind, (tf.Tensor, tf.Operation, tf.Variable)):
        _LEAF_TYPES.add(kind)
        return _LEAF
    # Other classes of lists and dictionaries say themselves how they are made from values.
    return _SEQUENCE if _is_named_tuple(kind) else _Kind.UNUSUAL


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


class _Planner:
    """Collects the elements of a structure while it makes what builds the result."""

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        self.tensors: dict[str, tf.Tensor] = {}
        self.operations: dict[str, tf.Operation] = {}
        self.leaves: list[Any] = []

    def plan(self, structure: Any) -> Build | None:
        """Returns what builds the result, or None for what is left to Session.run."""
        kind = type(structure)
        found = _CONTAINERS.get(kind) or _classify(kind)
        if found is _LEAF:
            return self._plan_leaf(structure)
        parts = structure.values() if found is _MAPPING else structure
        builds = [self.plan(part) for part in parts]
        known = [build for build in builds if build is not None]
        if len(known) < len(builds):
            return None
        if found is _MAPPING:
            return _mapping(kind, list(zip(structure, known, strict=True)))
        return _sequence(kind, known)

    def _plan_leaf(self, leaf: Any) -> Build | None:
        if not belongs(leaf, self._graph):
            return None
        self.leaves.append(leaf)
        element = self._graph.as_graph_element(leaf)
        if isinstance(element, tf.Operation):
            self.operations[element.name] = element
            return _nothing if self._graph.is_fetchable(element) else None
        handle = element.op.type.startswith("GetSessionHandle")
        if handle or not self._graph.is_fetchable(element.op):
            return None
        if element.dtype in (tf.resource, tf.variant):
            return None
        self.tensors.setdefault(element.name, element)
        return operator.itemgetter(list(self.tensors).index(element.name))


def _nothing(values: Sequence[Any]) -> None:
    """Returns what fetching an operation gives."""


def _sequence(kind: type, builds: Sequence[Build]) -> Build:
    if kind is list:
        return lambda values: [build(values) for build in builds]
    if kind is tuple:
        return lambda values: tuple([build(values) for build in builds])
    return lambda values: kind(*[build(values) for build in builds])


def _mapping(kind: type, builds: Sequence[tuple[Any, Build]]) -> Build:
    if kind is dict:
        return lambda values: {name: build(values) for name, build in builds}
    return lambda values: kind((name, build(values)) for name, build in builds)


_Array = npt.NDArray[Any]


class Feed:
    """Converts values fed to one tensor."""

    __slots__ = ("_dtype", "_shape", "_static", "tensor")

    def __init__(self, tensor: tf.Tensor) -> None:
        """Stores the tensor; it may be any of the graph that may be fed."""
        self.tensor = tensor
        self._dtype = np.dtype(tensor.dtype.as_numpy_dtype)
        self._static = tensor.shape
        # The latest shape found to fit: comparing with TensorFlow's shapes takes longer.
        self._shape: tuple[int, ...] | None = None

    def convert(self, value: Any) -> _Array | None:
        """Returns the value as an array of the tensor's dtype.

        None says that it cannot be, or only by rules that are `Session.run`'s own: an integer that
        the dtype cannot hold, a tensor, a handle, a shape that does not fit.
        """
        if type(value) is np.ndarray and value.dtype is self._dtype:
            array: _Array | None = value
        else:
            array = self._as_array(value)
        if array is None:
            return None
        shape = array.shape
        if shape != self._shape:
            if not self._static.is_compatible_with(shape):
                return None
            self._shape = shape
        return array

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
            return None  # Session.run tries the same and says what is wrong.
        return array if array == value else None


def belongs(element: Any, graph: tf.Graph) -> bool:
    """Says whether a graph element is one of the graph; an eager tensor is of none."""
    return getattr(element, "graph", None) is graph


def plan_feeds(keys: Iterable[Any], graph: tf.Graph) -> tuple[Feed, ...] | None:
    """Returns what converts the values fed to these keys.

    None says that a key is no plain tensor of the graph that may be fed.
    """
    feeds = []
    for key in keys:
        if not isinstance(key, tf.Tensor) or not belongs(key, graph) or not graph.is_feedable(key):
            return None
        if key.dtype != key.dtype.base_dtype or key.dtype in (tf.resource, tf.variant):
            return None
        feeds.append(Feed(key))
    return tuple(feeds)


def convert_all(feeds: Sequence[Feed], values: Iterable[Any]) -> list[_Array] | None:
    """Returns the values as arrays, or None when one of them cannot be converted here."""
    arrays = []
    for feed, value in zip(feeds, values, strict=True):
        array = feed.convert(value)
        if array is None:
            return None
        arrays.append(array)
    return arrays
