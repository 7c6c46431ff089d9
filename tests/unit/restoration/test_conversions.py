"""The basic steps between a tensor and a variable, against NumPy written out."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from runner.restoration.conversions import Cast, Conversion, PadOrSlice, Reshape, Slice, Transpose

VALUE = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("conversion", "expected", "words"),
    [
        (Transpose((1, 0)), VALUE.T, "transposed (1, 0)"),
        (Reshape((2, 6)), VALUE.reshape(2, 6), "reshaped to [2, 6]"),
        (Slice((1, 0), (2, 3)), VALUE[1:3, :3], "slice [1:3, 0:3]"),
        (Cast("int32"), VALUE.astype(np.int32), "cast to int32"),
        (
            PadOrSlice((3, 4), (2, 2), (0, 0)),
            VALUE[:2, :2],
            "common part [2, 2] of [3, 4]",
        ),
    ],
)
def test_a_step_gives_the_shape_it_says(conversion: Conversion, expected: Any, words: str) -> None:
    result = conversion.apply(VALUE)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)
    assert conversion.shape(VALUE.shape) == expected.shape
    assert not conversion.needs_initial
    assert conversion.describe() == words


@pytest.mark.parametrize(
    ("conversion", "message"),
    [
        (Transpose((0, 0)), r"axes \[0, 0\] do not permute the axes of \[3, 4\]"),
        (Transpose((0,)), r"axes \[0\] do not permute"),
        (Reshape((5,)), r"\[3, 4\] and \[5\] differ in size"),
        (Slice((2, 0), (2, 4)), r"\[3, 4\] has no block of \[2, 4\] at \(2, 0\)"),
        (Slice((0,), (2,)), r"\[3, 4\] has no block of \[2\] at \(0,\)"),
        (PadOrSlice((3, 4), (3,), (0,)), r"\[3, 4\] and \[3\] differ in rank"),
    ],
)
def test_a_step_refuses_other_shapes(conversion: Conversion, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conversion.shape(VALUE.shape)


def test_padding_keeps_the_initial_value_around_the_common_part() -> None:
    conversion = PadOrSlice((3, 4), (5, 2), (0, 0))
    initial = np.full((5, 2), -1, np.float32)
    result = conversion.apply(VALUE, initial)
    np.testing.assert_array_equal(result[:3], VALUE[:, :2])
    np.testing.assert_array_equal(result[3:], -1)
    np.testing.assert_array_equal(initial, -1)  # The initial value itself is untouched.
    assert conversion.needs_initial
    assert conversion.describe() == (
        "common part [3, 2] of [3, 4], the rest keeps its initial value"
    )


@pytest.mark.parametrize("initial", [None, np.zeros((2, 5), np.float32)])
def test_padding_needs_an_initial_value_of_its_shape(initial: Any) -> None:
    with pytest.raises(ValueError, match=r"an initial value of shape \[5, 2\] is needed, not"):
        PadOrSlice((3, 4), (5, 2), (0, 0)).apply(VALUE, initial)


def test_parts_of_a_padded_variable_make_the_padded_whole() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        old = tuple(generator.integers(1, 7, 2).tolist())
        new = tuple(generator.integers(1, 9, 2).tolist())
        value = generator.normal(size=old)
        initial = generator.normal(size=new)
        whole = PadOrSlice(old, new, (0, 0)).apply(value, initial)
        cut = int(generator.integers(0, new[0] + 1))
        parts = [
            PadOrSlice(old, (stop - start, new[1]), (start, 0)).apply(value, initial[start:stop])
            for start, stop in ((0, cut), (cut, new[0]))
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (np.array([1e300, 1.0]), "float32", "1 values are outside the range of float32"),
        (np.array([1e6]), "float16", "outside the range of float16"),
        (np.array([1 + 2j, 3, 1j]), "float32", "2 values have an imaginary part, which float32"),
        (np.array([300, 5, -1]), "uint8", "2 values are outside the range of uint8"),
        (np.array([np.nan]), "int32", "outside the range of int32"),
        (np.array([2.0**63]), "int64", "outside the range of int64"),
        (np.array([2**63], np.uint64), "int64", "outside the range of int64"),
    ],
)
def test_a_cast_out_of_range_is_an_error(value: Any, dtype: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cast(dtype).apply(value)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (np.array([np.inf, np.nan, 1.5]), "float32", [np.inf, np.nan, 1.5]),
        (np.array([1.0, 1 + 2**-12], np.float32), "bfloat16", [1.0, 1.0]),
        (np.array([2.9, -2.9]), "int8", [2, -2]),
        (np.array([127, -128]), "int8", [127, -128]),
        (np.array([2**63 - 1]), "int64", [2**63 - 1]),
        (np.array([True, False]), "int32", [1, 0]),
        (np.array([0, 2]), "bool", [False, True]),
        (np.array([1.5 + 0j, 2]), "float32", [1.5, 2.0]),
    ],
)
def test_a_cast_within_range(value: Any, dtype: str, expected: list[Any]) -> None:
    result = Cast(dtype).apply(value)
    assert result.dtype == getattr(ml_dtypes, dtype, dtype)
    np.testing.assert_array_equal(result.astype(np.asarray(expected).dtype), expected)
