"""Conversion of fed values to arrays, where it is as simple as it mostly is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

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
