"""Element types by name, and which casts between them are allowed."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np


@functools.cache
def parse(name: str) -> np.dtype[Any]:
    """Returns NumPy's dtype of this name, among them those of `ml_dtypes` such as `bfloat16`.

    Raises:
      ValueError: when `name` is no type of numbers or booleans, e.g. `string`.
    """
    try:
        dtype = np.dtype(getattr(ml_dtypes, name, name))
    except TypeError as error:
        raise ValueError(f"{name} is no type of numbers") from error
    if dtype.kind not in "biufc" and not hasattr(ml_dtypes, name):
        raise ValueError(f"{name} is no type of numbers")
    return dtype


def is_number(name: str) -> bool:
    """Returns whether `parse` knows the type."""
    try:
        parse(name)
    except ValueError:
        return False
    return True


def is_float(dtype: np.dtype[Any]) -> bool:
    """Returns whether these are real floating-point numbers, of NumPy or of `ml_dtypes`."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def casts_freely(old: str, new: str) -> bool:
    """Returns whether a cast needs no permission: float to float, or a wider type of one kind.

    A narrower float keeps the range or fails to be restored, and loses precision only; integers
    become floats, and floats integers, by permission alone.
    """
    if not (is_number(old) and is_number(new)):
        return False
    source, target = parse(old), parse(new)
    if is_float(source) and is_float(target):
        return True
    integers = source.kind in "iu" and target.kind in "iu"
    complexes = source.kind == target.kind == "c"
    return (integers or complexes) and np.can_cast(source, target, "safe")


def size_in_bytes(shape: tuple[int, ...], name: str) -> int:
    """Returns how many bytes the elements take; 0 for types without a fixed size, as strings."""
    if not is_number(name):
        return 0
    size = parse(name).itemsize
    for dimension in shape:
        size *= dimension
    return size
