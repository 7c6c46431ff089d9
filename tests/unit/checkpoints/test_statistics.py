from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from runner.checkpoints.comparison import Statistics, statistics


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8])
def test_minimum_maximum_and_mean(dtype: type) -> None:
    assert statistics(np.array([[1, 2], [-4, 3]], dtype)) == Statistics(-4, 3, 0.5, 0)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_nan_is_counted_and_left_out(dtype: type) -> None:
    value: NDArray[Any] = np.array([np.nan, 1, 3, np.nan], dtype)
    assert statistics(value) == Statistics(1, 3, 2, 2)


def test_the_mean_is_computed_in_float64() -> None:
    assert statistics(np.full(2**20, 0.1, np.float16)).mean == pytest.approx(float(np.float16(0.1)))


@pytest.mark.parametrize(
    ("value", "nan"),
    [
        (np.array([np.nan], np.float32), 1),
        (np.zeros((0, 3)), 0),
        (np.array(["a"]), 0),
        (np.array([b"a"], object), 0),
        (np.array([1j, np.nan], np.complex64), 1),
    ],
)
def test_some_have_no_order(value: NDArray[Any], nan: int) -> None:
    assert statistics(value) == Statistics(None, None, None, nan)


def test_truth_values_are_numbers() -> None:
    assert statistics(np.array([True, False])) == Statistics(0, 1, 0.5, 0)
