"""Objectives and constraints decide which trial is better."""

from __future__ import annotations

import math
from typing import Any

import pytest

from runner.config.choices import Goal
from runner.errors import ConfigError
from runner.sweeps.objectives import Objective, constraints, objectives_of, ranked_trials, violation
from runner.sweeps.sweep_directory import Attempt
from runner.system.status import Status
from tests.tiny.sweeping import ACCURACY, LOSS, finished

METRICS = [LOSS.name, ACCURACY.name]
SETTINGS: dict[str, Any] = {"pruner": {"_target_": "optuna.pruners.MedianPruner"}}
ACCURATE = {"_target_": "tests.tiny.spaces.accurate", "least": 0.75}


def test_the_value_is_the_metrics_or_else_the_objective_of_the_trial() -> None:
    assert LOSS.of(Attempt(0, metrics={"loss": 0.5}, objective=0.25)) == 0.5
    assert LOSS.of(Attempt(0, objective=0.25)) == 0.25
    assert LOSS.of(Attempt(0)) is None
    other = LOSS.on("test")
    assert other == Objective("test/loss", Goal.minimize)
    assert other.of(Attempt(0, objective=0.25)) == 0.25


@pytest.mark.parametrize("objective", [LOSS, ACCURACY])
def test_the_best_comes_first_and_failures_last(objective: Objective) -> None:
    trials = [
        finished(0, 0.5),
        finished(1, 0.0, status=Status.FAILED),
        finished(2, 0.25),
        finished(3, math.nan),
        finished(4, 0.75, status=Status.PRUNED),
        finished(5, 0.125, infeasible=True),
        finished(6, None),
    ]
    assert [trial.trial for trial in ranked_trials(trials, [objective])] == [2, 0, 4, 3, 6, 5, 1]


# hydra.sweeper.objectives -> parts of what is reported.
OBJECTIVES: list[tuple[Any, list[str]]] = [
    (
        {"validation/loss": "minimise", "validation/accuracy": "maximize"},
        ["loss is 'minimise'", "it must be a goal"],
    ),
    ({"validation/los": "minimize"}, ["names 'validation/los'", "choices: validation/loss"]),
]


@pytest.mark.parametrize(("given", "parts"), OBJECTIVES)
def test_objectives_are_the_experiments_or_the_sweepers(given: Any, parts: list[str]) -> None:
    right = {"validation/accuracy": "maximize"}
    assert objectives_of(SETTINGS, LOSS, METRICS) == [LOSS]
    assert objectives_of({**SETTINGS, "objectives": right}, LOSS, METRICS) == [ACCURACY]
    with pytest.raises(ConfigError) as raised:
        objectives_of({**SETTINGS, "objectives": given}, LOSS, METRICS)
    assert all(part in str(raised.value) for part in parts)


def test_constraints_are_bounds_or_functions() -> None:
    given = {"validation/loss": {"max": 0.5, "min": 0.25}, "accurate": ACCURATE}
    functions = constraints({"constraints": given}, METRICS)
    metrics = {"loss": 1.0, "accuracy": 1.0}
    assert {name: constraint(metrics) for name, constraint in functions.items()} == {
        "validation/loss": 0.5,
        "accurate": -0.25,
    }
    assert functions["validation/loss"]({"loss": 0.125}) == 0.125
    # With or without what stands before them; and bounds that just touch.
    for bounds in ({"loss": {"max": 1}}, {"validation/accuracy": {"min": 1, "max": 1}}):
        assert len(constraints({"constraints": bounds}, METRICS)) == 1
    assert constraints({}, METRICS) == constraints({"constraints": None}, METRICS) == {}


_NO_BOUNDS = "it must be a mapping with a number `min`, a `max` not below it, or a `_target_`"
# hydra.sweeper.constraints -> state and cause of each problem.
CONSTRAINTS: list[tuple[Any, list[tuple[str, str]]]] = [
    (0.5, [("hydra.sweeper.constraints is 0.5", "it must be a mapping")]),
    ({"loss": 0.5}, [(".loss is 0.5", _NO_BOUNDS)]),
    (
        {"validation/los": {"max": 0.5}, "mine": {**ACCURATE, "leats": 1}, "acc": {"mx": 1}},
        [
            ("names 'validation/los'", "no evaluation gives it"),
            (".mine.leats is not an argument of tests.tiny.spaces.accurate", ""),
            ("names 'acc'", "no evaluation gives it"),
            (".acc is {'mx': 1}", "it must be a mapping"),
        ],
    ),
    ({"mine": {"_target_": "nosuch.fn"}}, [(".mine._target_ is 'nosuch.fn'", "")]),
    *(
        ({"loss": {"max": bound}}, [(f".loss is {{'max': {bound!r}}}", _NO_BOUNDS)])
        for bound in ("x", None, True, math.nan, [1])
    ),
    ({"loss": {"min": 1, "max": 0}}, [(".loss is {'min': 1, 'max': 0}", _NO_BOUNDS)]),
    ({"loss": {"min": math.inf, "max": 1e9}}, [(".loss is {'min': inf", _NO_BOUNDS)]),
]


@pytest.mark.parametrize(("given", "problems"), CONSTRAINTS)
def test_mistakes_in_constraints(given: Any, problems: list[tuple[str, str]]) -> None:
    with pytest.raises(ConfigError) as raised:
        constraints({"constraints": given}, METRICS)
    for (state, cause), problem in zip(problems, raised.value.problems, strict=True):
        assert state in problem.state
        assert problem.cause.startswith(cause)


def test_what_is_unknown_is_violated() -> None:
    given = {"validation/loss": {"max": 0.5}, "accurate": ACCURATE}
    functions = constraints({"constraints": given}, METRICS)
    assert violation(functions["validation/loss"], {"loss": 0.25}) == -0.25
    for metrics in ({"loss": math.nan}, {"accuracy": 1.0}, {}):
        assert violation(functions["validation/loss"], metrics) == math.inf
    assert violation(functions["accurate"], {"accuracy": math.nan}) == math.inf
    assert violation(functions["accurate"], {}) == math.inf


def test_a_function_that_gives_no_number_is_named() -> None:
    given = {name: f"tests.tiny.spaces.{name}" for name in ("forgetful", "divided")}
    nodes = {name: {"_target_": target} for name, target in given.items()}
    causes = ("TypeError: float() argument must be", "ZeroDivisionError")
    functions = constraints({"constraints": nodes}, METRICS)
    for function, cause in zip(functions.values(), causes, strict=True):
        with pytest.raises(ConfigError, match="fails") as raised:
            function({"loss": 0.5, "error": 0.5})
        assert f"cause: {cause}" in str(raised.value)
