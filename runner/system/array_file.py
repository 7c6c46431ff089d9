"""Arrays in a file, in place of memory."""

from __future__ import annotations

import math
import os
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Place(NamedTuple):
    """Where an array begins in a file, its dtype and its shape."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class ArrayFile:
    """Arrays of numbers in a file open for reading and writing; `np.save` has no bfloat16."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def append(self, array: NDArray[Any]) -> Place:
        """Writes an array at the end, and returns where it is.

        Raises:
          OSError: when the disk is full, for example.
        """
        offset = self._file.seek(0, os.SEEK_END)
        # `ndarray.tofile` raises an error without a number where the disk is full.
        self._file.write(array.reshape(-1).view(np.uint8).data)
        self._file.flush()
        return Place(offset, array.dtype, array.shape)

    def read(self, place: Place) -> NDArray[Any]:
        """Returns an array."""
        self._file.seek(place.offset)
        return np.fromfile(self._file, place.dtype, math.prod(place.shape)).reshape(place.shape)
