"""What a configuration may say of the learning rate."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config.validation import rate_problems

SCHEDULE = {"_target_": "keras.optimizers.schedules.CosineDecay"}


@pytest.mark.parametrize("rate", [0.1, 1, None, "???", SCHEDULE])
def test_a_number_a_schedule_or_nothing_is_fine(rate: Any) -> None:
    assert rate_problems({"learning_rate": rate}) == []
    assert rate_problems({}) == []


@pytest.mark.parametrize("rate", ["x", "1e-3", True, [0.1], {"decay_steps": 3}])
def test_anything_else_is_no_rate(rate: Any) -> None:
    (problem,) = rate_problems({"learning_rate": rate})
    assert problem.state == f"optimizer.learning_rate is {rate!r}"
    assert problem.cause == "it is neither a number nor a schedule"
    assert "schedule@optimizer.learning_rate=cosine" in problem.remedy
