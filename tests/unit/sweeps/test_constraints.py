from __future__ import annotations

import math
from typing import Any

import pytest

from runner.errors import ConfigError
from runner.sweeps.constraints import constraints, violation

METRICS = ["validation/loss", "validation/accuracy"]
ACCURATE = {"_target_": "tests.tiny.spaces.accurate", "least": 0.75}


def _refused(given: Any, metrics: list[str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        constraints({"constraints": given}, metrics)
    return [str(each) for each in raised.value.problems]


def test_constraints_are_bounds_or_functions() -> None:
    given = {"validation/loss": {"max": 0.5, "min": 0.25}, "accurate": ACCURATE}
    found = constraints({"constraints": given}, METRICS)
    metrics = {"loss": 1.0, "accuracy": 1.0}
    assert {name: each(metrics) for name, each in found.items()} == {
        "validation/loss": 0.5,
        "accurate": -0.25,
    }
    assert found["validation/loss"]({"loss": 0.125}) == 0.125
    assert constraints({}) == constraints({"constraints": None}) == {}


def test_a_constraint_says_what_it_asks() -> None:
    (problem,) = _refused({"loss": 0.5})
    assert problem.startswith("hydra.sweeper.constraints.loss is 0.5\n")
    assert "for example {loss: {max: 0.5}} or {loss: {_target_: my.constraint}}" in problem


def test_constraints_are_a_mapping() -> None:
    (problem,) = _refused(0.5)
    assert problem.startswith("hydra.sweeper.constraints is 0.5\n  cause: it must be a mapping\n")
    assert "hydra.sweeper.constraints={validation/loss: {max: 0.5}}" in problem


def test_a_target_needs_a_name() -> None:
    (problem,) = _refused({"_target_": "nosuch.fn"})
    assert problem.startswith("hydra.sweeper.constraints has a `_target_` itself\n")
    assert "'hydra.sweeper.constraints={mine: {_target_: nosuch.fn}}'" in problem
    (problem,) = _refused({"mine": {"_target_": "nosuch.fn"}})
    assert problem.startswith("hydra.sweeper.constraints.mine._target_ is 'nosuch.fn'\n")


def test_bounds_are_of_metrics_and_all_mistakes_are_told() -> None:
    given = {"validation/los": {"max": 0.5}, "accurate": {**ACCURATE, "leats": 1}, "acc": {"mx": 1}}
    problems = _refused(given, METRICS)
    assert [each.partition("\n")[0] for each in problems] == [
        "hydra.sweeper.constraints names 'validation/los'",
        "hydra.sweeper.constraints.accurate.leats is not an argument of tests.tiny.spaces.accurate",
        "hydra.sweeper.constraints names 'acc'",
        "hydra.sweeper.constraints.acc is {'mx': 1}",
    ]
    assert "cause: no evaluation gives it" in problems[0]
    assert "choices: validation/loss, validation/accuracy" in problems[0]
    # With or without what stands before them.
    bounds = {"loss": {"max": 1}, "validation/accuracy": {"min": 0}}
    assert len(constraints({"constraints": bounds}, METRICS)) == 2


@pytest.mark.parametrize("bound", ["x", None, True, math.nan, [1]])
def test_a_bound_is_a_number(bound: Any) -> None:
    (problem,) = _refused({"validation/loss": {"max": bound}}, METRICS)
    state = f"hydra.sweeper.constraints.validation/loss.max is {bound!r}"
    assert problem == f"{state}\n  cause: it must be a number"


def test_what_nobody_can_tell_is_violated() -> None:
    given = {"validation/loss": {"max": 0.5}, "accurate": ACCURATE}
    found = constraints({"constraints": given})
    assert violation(found["validation/loss"], {"loss": 0.25}) == -0.25
    for metrics in ({"loss": math.nan}, {"accuracy": 1.0}, {}):
        assert violation(found["validation/loss"], metrics) == math.inf
    assert violation(found["accurate"], {"accuracy": math.nan}) == math.inf
    assert violation(found["accurate"], {}) == math.inf


def test_a_function_that_raises_is_named_with_the_metrics_that_there_are() -> None:
    found = constraints({"constraints": {"accurate": ACCURATE}})
    with pytest.raises(
        ConfigError, match=r"tests\.tiny\.spaces\.accurate gives no number"
    ) as raised:
        found["accurate"]({"loss": 1.0, "error": 0.5})
    assert "cause: KeyError: 'accuracy'" in str(raised.value)
    assert "it is given the metrics error, loss" in str(raised.value)


@pytest.mark.parametrize("bounds", [{"min": 1, "max": 0}, {"min": math.inf, "max": 1e9}])
def test_bounds_that_no_trial_meets(bounds: dict[str, float]) -> None:
    (problem,) = _refused({"validation/loss": bounds}, METRICS)
    assert problem == (
        f"hydra.sweeper.constraints.validation/loss is {bounds!r}\n"
        "  cause: min is above max, so that no trial meets it"
    )
    for met in ({"min": 1, "max": 1}, {"max": -1}, {"min": 2}):
        assert len(constraints({"constraints": {"validation/loss": met}}, METRICS)) == 1


TRIED = {
    ("forgetful", "gives no number"): "it returns None where every metric is 0.5",
    ("low", "cannot be called with the metrics alone"): "missing a required argument: 'least'",
    ("accurate", "asks for the metric 'accuracy'"): "no evaluation gives it",
}


@pytest.mark.parametrize(("name", "state"), TRIED)
def test_a_function_is_tried_before_the_sweep(name: str, state: str) -> None:
    target: dict[str, Any] = {"_target_": f"tests.tiny.spaces.{name}"}
    if name == "accurate":
        target["least"] = 0.5
    (problem,) = _refused({"mine": target}, ["validation/loss", "validation/acuracy"])
    assert problem.startswith(f"hydra.sweeper.constraints.mine: tests.tiny.spaces.{name} {state}\n")
    assert f"cause: {TRIED[name, state]}" in problem
    # Where nobody knows the metrics, it is not.
    assert len(constraints({"constraints": {"mine": target}})) == 1


def test_what_only_other_values_can_tell_is_not_refused() -> None:
    given = {"mine": {"_target_": "tests.tiny.spaces.divided"}, "accurate": ACCURATE}
    found = constraints({"constraints": given}, METRICS)
    assert found["mine"]({"loss": 1.0}) == 2.0
