from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from runner.checkpoints.reader import (
    TensorSpec,
    is_number,
    parse_dtype,
    require_names,
    unreadable,
)
from runner.errors import CheckpointError


def test_the_first_line_of_a_cause_is_shown() -> None:
    error = unreadable("m", "an HDF5 file", ValueError("first\nsecond"))
    assert str(error).splitlines()[:2] == ["m cannot be read as an HDF5 file", "  cause: first"]


def test_an_exception_without_words_is_named() -> None:
    assert "cause: MemoryError" in str(unreadable("m", "an HDF5 file", MemoryError()))


def test_all_unknown_names_are_reported_at_once() -> None:
    with pytest.raises(CheckpointError, match="m holds no tensor 'kernal'") as caught:
        require_names("m", ["kernal", "bias", "other"], {"kernel": 1, "bias": 2})
    assert [problem.choices[0] for problem in caught.value.problems] == ["kernel", "bias"]


def test_parse_knows_the_types_of_numpy_and_ml_dtypes() -> None:
    assert parse_dtype("float32") == np.float32
    assert parse_dtype("bool") == np.bool_
    assert parse_dtype("bfloat16") == ml_dtypes.bfloat16


@pytest.mark.parametrize("name", ["string", "resource", "str", "object", "nonsense"])
def test_parse_refuses_what_is_no_number(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is not a type of numbers$"):
        parse_dtype(name)
    assert not is_number(name)


@pytest.mark.parametrize(
    ("shape", "name", "size"),
    [
        ((), "float64", 8),
        ((3, 4), "bfloat16", 24),
        ((2, 3), "float8_e4m3fn", 6),
        ((0, 5), "int32", 0),
        ((7,), "string", 0),
        ((), "variant", 0),
    ],
)
def test_the_bytes_of_a_tensor(shape: tuple[int, ...], name: str, size: int) -> None:
    assert TensorSpec("x", shape, name).bytes == size
