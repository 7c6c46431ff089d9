from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from runner.config.instantiation import cannot_be_meant

CASES: list[tuple[Any, Any, bool]] = [
    ("x", int, True),
    ("8", int, True),
    (8, int, False),
    (8.0, int, False),
    (0.5, int, True),
    (math.inf, int, True),
    (True, int, False),
    ([8], int, True),
    ({"size": 8}, int, True),
    ({"_target_": "mine.Size"}, int, False),
    ("${graph:loss}", float, False),
    ("fast", float, True),
    (1, float, False),
    (math.nan, float, False),
    ("yes", bool, True),
    (1, bool, False),
    (0.5, bool, True),
    ("relu", str, False),
    (5, str, False),
    (0.5, str, False),
    (["relu"], str, True),
    ("x", int | str, False),
    ("x", int | float, True),
    (0.5, int | None, True),
    (None, int | None, False),
    (None, Optional[int], False),  # noqa: UP045 - users write it
    ("x", Optional[int], True),  # noqa: UP045
    (None, int, True),
    # What is not looked at.
    ("x", Any, False),
    ("x", None, False),
    ("x", Literal["y"], False),
    ("x", int | Path, False),
    ("x", list[int], False),
    ("x", "int", False),
    (Path("x"), str, False),
]


@pytest.mark.parametrize(("value", "annotation", "refused"), CASES)
def test_what_cannot_be_meant(value: Any, annotation: Any, refused: bool) -> None:
    assert cannot_be_meant(value, annotation, default=3) is refused


def test_null_is_never_refused_where_it_is_the_default() -> None:
    assert not cannot_be_meant(None, int, default=None)
