from __future__ import annotations

import pytest

from runner.checkpoints.reader import require_names, unreadable
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
