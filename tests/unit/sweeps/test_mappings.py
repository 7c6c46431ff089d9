from __future__ import annotations

from typing import Any

import pytest

from runner.errors import ConfigError
from runner.sweeps.points import given_mapping


def test_what_is_not_given_is_empty_and_keys_are_texts() -> None:
    assert given_mapping("params", None, "{}") == {}
    assert given_mapping("params", {1: "a", "b": 2}, "{}") == {"1": "a", "b": 2}


@pytest.mark.parametrize("value", [3, 0.5, "validation/loss", ["seed"], ""])
def test_anything_else_is_refused_with_an_example(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.params is ") as raised:
        given_mapping("params", value, "{seed: [1,2]}")
    (problem,) = raised.value.problems
    assert problem.state.endswith(repr(value))
    assert problem.cause == "it must be a mapping"
    assert problem.remedy == "for example 'hydra.sweeper.params={seed: [1,2]}'"
