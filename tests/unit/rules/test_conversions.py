"""The steps between a tensor and a variable, against NumPy written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.rules.conversions import (
    Cast,
    Conversion,
    PadOrSlice,
    Reshape,
    Slice,
    Transpose,
    casts_freely,
)
from runner.rules.vocabularies import read_vocabulary, remap

VALUE = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("conversion", "expected", "words"),
    [
        (Transpose((1, 0)), VALUE.T, "transposed (1, 0)"),
        (Reshape((2, 6)), VALUE.reshape(2, 6), "reshaped to [2, 6]"),
        (Slice((1, 0), (2, 3)), VALUE[1:3, :3], "slice [1:3, 0:3]"),
        (Cast("int32"), VALUE.astype(np.int32), "cast to int32"),
        (PadOrSlice((3, 4), (2, 2), (0, 0)), VALUE[:2, :2], "common part [2, 2] of [3, 4]"),
        (
            PadOrSlice((3, 4), (5, 2), (0, 0)),
            np.pad(VALUE[:, :2], [(0, 2), (0, 0)], constant_values=-1),
            "common part [3, 2] of [3, 4] and [5, 2], the rest keeps its initial value",
        ),
    ],
)
def test_a_step_gives_the_shape_it_says(conversion: Conversion, expected: Any, words: str) -> None:
    result = conversion.apply(VALUE, np.full((5, 2), -1, np.float32))
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)
    assert conversion.shape(VALUE.shape) == expected.shape
    assert conversion.needs_initial == ("initial" in words)
    assert str(conversion) == words


SHAPE = st.tuples(st.integers(1, 6), st.integers(1, 6))


@given(SHAPE, SHAPE, st.data())
def test_parts_of_a_padded_variable_make_the_padded_whole(
    old: tuple[int, int], new: tuple[int, int], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, new[0]))
    value, initial = np.random.default_rng(0).normal(size=old), np.full(new, -1.0)
    whole = PadOrSlice(old, new, (0, 0)).apply(value, initial)
    assert (initial == -1).all(), "the initial value itself is untouched"
    rows, columns = np.minimum(old, new)
    np.testing.assert_array_equal(whole[:rows, :columns], value[:rows, :columns])
    assert (whole == -1).sum() == whole.size - rows * columns
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
    ],
)
def test_a_cast_within_range(value: Any, dtype: str, expected: list[Any]) -> None:
    result = Cast(dtype).apply(value)
    assert result.dtype == getattr(ml_dtypes, dtype, dtype)
    np.testing.assert_array_equal(result.astype(np.asarray(expected).dtype), expected)


OLD, NEW = ("the", "cat", "sat"), ("sat", "dog", "the", "cat", "ran")


def test_columns_move_with_their_tokens() -> None:
    columns = remap(OLD, ("cat", "the"), 1, old_size=3, new_size=2)
    assert not columns.needs_initial
    assert columns.apply(np.array([[1, 2, 3], [4, 5, 6]])).tolist() == [[2, 1], [5, 4]]
    assert str(columns) == "2 tokens moved along axis 1"
    new = remap(OLD, ("cat", "dog"), 1, old_size=3, new_size=2)
    value, initial = np.arange(12).reshape(2, 3, 2), np.full((2, 2, 2), -1)
    assert new.apply(value, initial).tolist() == [[[2, 3], [-1, -1]], [[8, 9], [-1, -1]]]


def test_rows_beyond_the_vocabularies_belong_to_no_token() -> None:
    conversion = remap(("a", "b"), ("b",), 0, old_size=4, new_size=3)
    value, initial = np.arange(4), np.full(3, -1)
    assert conversion.apply(value, initial).tolist() == [1, -1, -1]


TOKENS = st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True)


@given(TOKENS, TOKENS, st.data())
def test_every_token_has_its_row_and_parts_make_the_whole(
    old: list[str], new: list[str], data: st.DataObject
) -> None:
    value = np.random.default_rng(0).normal(size=(len(old), 3))
    initial = np.random.default_rng(1).normal(size=(len(new), 3))
    conversion = remap(old, new, 0, old_size=len(old), new_size=len(new))
    whole = conversion.apply(value, initial)
    for row, token in enumerate(new):
        expected = value[old.index(token)] if token in old else initial[row]
        np.testing.assert_array_equal(whole[row], expected)
    cut = data.draw(st.integers(0, len(new)))
    parts = [
        conversion.part(start, stop - start).apply(value, initial[start:stop])
        for start, stop in ((0, cut), (cut, len(new)))
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(
    ("new", "old_size", "new_size", "message"),
    [
        (NEW, 2, 5, "the old vocabulary has 3 tokens, axis 0 only 2"),
        (NEW, 3, 4, "the new vocabulary has 5 tokens, axis 0 only 4"),
        (("cat", "dog", "cat"), 3, 3, "the new vocabulary names 'cat' twice"),
    ],
)
def test_a_vocabulary_that_is_too_long_or_names_a_token_twice_is_refused(
    new: tuple[str, ...], old_size: int, new_size: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        remap(OLD, new, 0, old_size=old_size, new_size=new_size)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", ()),
        ("a\nb\n", ("a", "b")),
        ("a\nb", ("a", "b")),
        ("ä\n\u2028\n \n", ("ä", "\u2028", " ")),
        ("a\r\nb\r\n", ("a", "b")),
        ("a\rb\r", ("a", "b")),
        ("a\r\nb\nc\rd", ("a", "b", "c", "d")),
        ("\ufeffa\nb", ("a", "b")),
        ("a\n\nb\n", ("a", "", "b")),
    ],
)
def test_a_file_holds_one_token_a_line(text: str, tokens: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(text.encode())
    assert read_vocabulary(str(path)) == tokens


FREE = {
    "float64": ["float32", "bfloat16"],
    "float16": ["float32", "bfloat16"],
    "bfloat16": ["float16", "float64"],
    "int32": ["int64"],
    "uint8": ["int32"],
    "complex64": ["complex128"],
}
NOT_FREE = {
    "int64": ["int32"],
    "uint32": ["int32"],
    "int32": ["float64"],
    "float32": ["int32", "string"],
    "complex128": ["complex64"],
    "complex64": ["float32"],
    "bool": ["float32"],
    "string": ["float32"],
}


def test_casts_that_need_no_permission() -> None:
    for casts, free in ((FREE, True), (NOT_FREE, False)):
        for old, others in casts.items():
            assert {new: casts_freely(old, new) for new in others} == dict.fromkeys(others, free)
