"""Arrays in a file: every dtype comes back, and a full disk is an error of the system."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from runner.system.array_file import ArrayFile

ARRAYS: list[NDArray[Any]] = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(7.5),
    np.zeros((0, 3), np.int64),
    np.array([True, False]),
    np.array([1.5, -2.5], ml_dtypes.bfloat16),
    np.arange(6).reshape(2, 3).T,
]


def test_arrays_come_back_in_any_order() -> None:
    with tempfile.TemporaryFile() as file:
        arrays = ArrayFile(file)
        places = [arrays.append(array) for array in ARRAYS]
        for place, array in [*zip(places, ARRAYS, strict=True)][::-1]:
            value = arrays.read(place)
            assert (value.dtype, value.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(value, array)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a device of Linux")
def test_a_full_disk_has_its_number() -> None:
    with (
        Path("/dev/full").open("r+b", buffering=0) as file,
        pytest.raises(OSError, match="No space left") as raised,
    ):
        ArrayFile(file).append(np.zeros(10))
    assert raised.value.errno == errno.ENOSPC
