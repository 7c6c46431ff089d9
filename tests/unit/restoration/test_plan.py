"""What a plan's parts do."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from runner.checkpoints.reader import TensorSpec
from runner.errors import PlanError, Problem
from runner.restoration.conversions import Cast, PadOrSlice, Transpose
from runner.restoration.layouts import Sum
from runner.restoration.plan import RestorationPlan, SourceTensor, mean
from tests.tiny.plans import checkpoint, one, scaffold, variable

TENSOR = TensorSpec("w", (2, 3), "float64")


def test_a_piece_as_it_is() -> None:
    piece = SourceTensor("net", TENSOR)
    value = np.ones((2, 3))
    assert piece.as_is
    assert not piece.needs_initial
    assert piece.names == ("w",)
    assert piece.convert([value]) is value


def test_a_piece_of_several_tensors_and_steps() -> None:
    other = TensorSpec("v", (2, 3), "float64")
    steps = (Transpose((1, 0)), Cast("float32"), PadOrSlice((3, 2), (3, 3), (0, 0)))
    piece = SourceTensor("net", TENSOR, steps, (other,), Sum())
    assert not piece.as_is
    assert piece.needs_initial
    assert piece.names == ("w", "v")
    values, initial = [np.ones((2, 3)), np.ones((2, 3))], np.zeros((3, 3), np.float32)
    result = piece.convert(values, initial)
    assert result.dtype == np.float32
    assert result.tolist() == [[2, 2, 0]] * 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            [np.array([1, 2], np.float32), np.array([3, 5], np.float32)],
            np.array([2, 3.5], np.float32),
        ),
        ([np.array([1]), np.array([2]), np.array([5])], np.array([3])),
        ([np.array([1]), np.array([2])], np.array([2])),
        (
            [np.array([3e38], np.float32), np.array([3e38], np.float32)],
            np.array([3e38], np.float32),
        ),
        ([np.ones(1, ml_dtypes.bfloat16)] * 3, np.ones(1, ml_dtypes.bfloat16)),
    ],
)
def test_the_mean_keeps_the_dtype(values: list[Any], expected: Any) -> None:
    result = mean(values)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


def test_what_a_source_restores() -> None:
    plan = one([variable("a"), variable("b")], scaffold("a"), checkpoint("a"))
    assert [each.variable.name for each in plan.restored("net")] == ["a"]
    plan.require_sound()


def test_a_plan_with_problems_is_not_sound() -> None:
    problems = (Problem("one is wrong"), Problem("another is wrong"))
    with pytest.raises(PlanError, match="one is wrong\nanother is wrong") as caught:
        RestorationPlan((), {}, {}, problems).require_sound()
    assert caught.value.problems == problems
    assert caught.value.exit_code == 3
