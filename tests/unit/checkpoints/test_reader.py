from __future__ import annotations

import numpy as np
import pytest

from runner.checkpoints.reader import blocks_of, require_names, unreadable
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


def test_blocks_share_no_memory() -> None:
    value = np.arange(12).reshape(4, 3)
    whole, rows, corner = blocks_of(value, [None, ((1, 0), (2, 3)), ((3, 1), (1, 2))])
    np.testing.assert_array_equal(whole, value)
    np.testing.assert_array_equal(rows, value[1:3])
    np.testing.assert_array_equal(corner, [[10, 11]])
    assert not any(np.shares_memory(each, value) for each in (whole, rows, corner))


def test_the_whole_by_itself_is_not_copied() -> None:
    value = np.arange(3)
    (whole,) = blocks_of(value, [None])
    assert whole is value
