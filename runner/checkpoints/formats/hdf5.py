"""The datasets of HDF5 files from untrusted sources: where they are, their types and values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import h5py
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.reader import unreadable

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Listing so many takes 10 seconds.
_MAX_DEPTH, _MAX_ENTRIES = 64, 50_000
_HDF5 = "an HDF5 file"
# Attributes of NetCDF by which values are multiplied, shifted or masked when they are read.
_PACKED = frozenset(("scale_factor", "add_offset", "_FillValue", "missing_value"))
_MATLAB = "MATLAB_class"
# Where a dataset's values begin in the file, their shape and type.
Place: TypeAlias = tuple[int, tuple[int, ...], np.dtype[Any]]


def paths_in(group: h5py.Group) -> dict[str, bool]:
    """Returns path -> whether it is a dataset, of all in the group, without following links.

    An external link would show the values of any other file. `visititems` opens every object: 20 ms
    for ResNet-50, against 8.
    """
    paths: dict[str, bool] = {}

    def add(path: bytes, info: Any) -> None:
        if path.count(b"/") >= _MAX_DEPTH or len(paths) >= _MAX_ENTRIES:
            raise ValueError(
                f"it has more than {_MAX_ENTRIES:,} groups and datasets, or more than {_MAX_DEPTH} "
                "levels of groups"
            )
        paths[path.decode()] = info.type == h5py.h5o.TYPE_DATASET

    h5py.h5o.visit(group.id, add, info=True)
    return paths


def place_of(dataset: h5py.Dataset) -> Place | None:
    """Returns the place of values that the file holds in one piece and in NumPy's layout."""
    start, dtype = dataset.id.get_offset(), dataset.dtype
    if start is None or dtype.kind not in "biufc" or not dtype.isnative or dataset.attrs:
        return None
    as_in_memory = dataset.id.get_type().equal(h5py.h5t.py_create(dtype))
    return (start, dataset.shape, dtype) if as_in_memory else None


def value_of(path: str, dataset: h5py.Dataset) -> NDArray[np.generic]:
    """Reads a dataset.

    Raises:
      CheckpointError: when its values are in another file or were never written.
    """
    if dataset.external or dataset.is_virtual:
        raise unreadable(path, _HDF5, f"{dataset.name} keeps its values in another file")
    if dataset.size and not dataset.id.get_storage_size():
        raise unreadable(path, _HDF5, f"the values of {dataset.name} were never written")
    if dataset.chunks and dataset.id.get_num_chunks() < _chunks(dataset):
        raise unreadable(path, _HDF5, f"some values of {dataset.name} were never written")
    if _MATLAB in dataset.attrs:
        cause = f"MATLAB wrote {dataset.name}, whose axes are in the opposite order"
        raise unreadable(path, _HDF5, cause)
    if packed := _PACKED & {*dataset.attrs}:
        raise unreadable(path, _HDF5, f"{dataset.name} is packed: it has {', '.join(packed)}")
    if dataset.size and dataset.dtype.kind in "biufc":
        value = np.empty(dataset.shape, dataset.dtype)  # Owns its memory, unlike `dataset[()]`.
        dataset.read_direct(value)
    else:
        value = np.asarray(dataset[()])
    # Keras writes bfloat16 as two opaque bytes with an attribute.
    is_opaque = value.dtype.kind == "V" and value.dtype != _BFLOAT16
    return value.view(_BFLOAT16) if is_opaque and dtype_of(dataset) == _BFLOAT16.name else value


def _chunks(dataset: h5py.Dataset) -> int:
    """Returns how many chunks hold all values of a dataset."""
    return math.prod(
        -(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)
    )


def dtype_of(dataset: h5py.Dataset) -> str:
    """Returns the type of a dataset's elements; Keras says in an attribute what NumPy lacks."""
    said, stored = string(dataset.attrs.get("dtype", "")), dataset.dtype
    if said and stored.kind == "V" and stored.itemsize == _BFLOAT16.itemsize:
        return said if said == _BFLOAT16.name else f"{said} of Keras"
    if said and said != stored.name:
        return f"{stored.name} for {said} of Keras"
    return "string" if dataset.dtype.kind in "OSU" else str(dataset.dtype.name)


def strings(attributes: Mapping[str, Any], name: str) -> list[str]:
    """Returns a list of strings that Keras stored in one attribute, or in parts in several."""
    if name in attributes:
        return [string(value) for value in attributes[name]]
    numbered = (f"{name}{number}" for number in itertools.count())
    parts = itertools.takewhile(lambda part: part in attributes, numbered)
    return [string(value) for part in parts for value in attributes[part]]


def string(value: object) -> str:
    """Returns a string of an attribute, which h5py gives as either type."""
    return value.decode() if isinstance(value, bytes) else str(value)
