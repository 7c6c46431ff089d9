"""Element types by name, and the casts between them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from runner.restoration import dtypes


def test_parse_knows_the_types_of_numpy_and_ml_dtypes() -> None:
    assert dtypes.parse("float32") == np.float32
    assert dtypes.parse("bool") == np.bool_
    assert dtypes.parse("bfloat16") == ml_dtypes.bfloat16


@pytest.mark.parametrize("name", ["string", "resource", "str", "object", "nonsense"])
def test_parse_refuses_what_is_no_number(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is no type of numbers$"):
        dtypes.parse(name)
    assert not dtypes.is_number(name)


@pytest.mark.parametrize(
    ("old", "new", "free"),
    [
        ("float32", "float64", True),
        ("float64", "float32", True),
        ("float32", "bfloat16", True),
        ("bfloat16", "float16", True),
        ("float16", "float32", True),
        ("int32", "int64", True),
        ("uint8", "int32", True),
        ("complex64", "complex128", True),
        ("int64", "int32", False),
        ("uint32", "int32", False),
        ("complex128", "complex64", False),
        ("float32", "int32", False),
        ("int32", "float64", False),
        ("int8", "float32", False),
        ("bool", "float32", False),
        ("complex64", "float32", False),
        ("string", "float32", False),
        ("float32", "string", False),
    ],
)
def test_casts_that_need_no_permission(old: str, new: str, free: bool) -> None:
    assert dtypes.casts_freely(old, new) is free


@pytest.mark.parametrize(
    ("shape", "name", "size"),
    [((), "float64", 8), ((3, 4), "bfloat16", 24), ((0, 5), "int32", 0), ((7,), "string", 0)],
)
def test_size_in_bytes(shape: tuple[int, ...], name: str, size: int) -> None:
    assert dtypes.size_in_bytes(shape, name) == size
