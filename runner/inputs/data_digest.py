"""Computes the digest of data, by which a run is resumed with the same data only."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from runner.inputs.generator import GivenGenerator
from runner.internals.datasets import dataset_constants, uses_other_devices

_RANDOM = ("Shuffle", "Random", "Multinomial")


def digest(value: Any) -> str:
    """Returns 12 hexadecimal digits of data as `keras.Model.fit` takes them.

    Arrays are told apart by their values. A `tf.data.Dataset` is by its types, length, constants
    such as arrays in memory and names of files, the sizes of these files, and its first batch
    unless that is random; a `PyDataset` by its class, length and first batch; a generator by its
    first batch; any other object by its class.
    """
    hashed = hashlib.sha256()
    _add(hashed, value)
    return hashed.hexdigest()[:12]


def _add(hashed: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        for key in value:
            hashed.update(str(key).encode())
            _add(hashed, value[key])
    elif isinstance(value, tuple | list):
        for item in value:
            _add(hashed, item)
    elif isinstance(value, tf.data.Dataset):
        _add_dataset(hashed, value)
    elif isinstance(value, keras.utils.PyDataset):
        _add_kind(hashed, value)
        hashed.update(str(value.num_batches).encode())
        _add_first(hashed, value[0], value[0])
    elif isinstance(value, GivenGenerator):
        _add(hashed, value.first[0])
    elif isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        _add(hashed, tf.nest.flatten(value, expand_composites=True))
    elif hasattr(value, "tocoo"):  # A sparse matrix of SciPy.
        matrix = value.tocoo()
        _add(hashed, (matrix.row, matrix.col, matrix.data, matrix.shape))
    elif hasattr(value, "__array__"):
        array = np.ascontiguousarray(value)
        hashed.update(f"{array.shape} {array.dtype}".encode())
        hashed.update(array.astype(str).tobytes() if array.dtype.hasobject else array.data)
    elif isinstance(value, str | bytes | int | float | bool | None):
        hashed.update(repr(value).encode())
    else:
        _add_kind(hashed, value)


def _add_kind(hashed: Any, value: Any) -> None:
    hashed.update(f"{type(value).__module__}.{type(value).__qualname__}".encode())


def _add_dataset(hashed: Any, dataset: tf.data.Dataset) -> None:
    hashed.update(f"{dataset.element_spec} {int(dataset.cardinality())}".encode())
    if uses_other_devices(dataset):
        return  # Nothing tells its constants, and a batch would draw random numbers.
    kinds, constants = dataset_constants(dataset)
    for array in constants:
        _add(hashed, array)
        for file in _files(array):
            hashed.update(str(os.path.getsize(file)).encode())
    if not any(name in kind for kind in kinds for name in _RANDOM):
        first = [_first(dataset), _first(dataset)]
        if None not in first:
            _add_first(hashed, *first)


def _first(dataset: tf.data.Dataset) -> Any:
    """Returns the leaves of the first batch as arrays; None without one."""
    for batch in dataset.take(1):
        leaves = tf.nest.flatten(batch, expand_composites=True)
        return [leaf.numpy() for leaf in leaves]
    return None


def _add_first(hashed: Any, first: Any, again: Any) -> None:
    """Adds the first batch, unless reading it again gives another, as random augmentation does."""
    one, other = hashlib.sha256(), hashlib.sha256()
    _add(one, first)
    _add(other, again)
    if one.digest() == other.digest():
        hashed.update(one.digest())


def _files(array: Any) -> Iterator[str]:
    """Yields the files that an array of strings names."""
    if array.dtype.kind not in "OSU":
        return
    for name in array.ravel():
        path = os.fsdecode(name) if isinstance(name, bytes) else str(name)
        if "\0" not in path and os.path.isfile(path):
            yield path
