"""Objectives decide which trial is better."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from runner.config.choices import Goal
from runner.errors import ConfigError
from runner.sweeps.objectives import Objective, objectives_of, ranked_trials
from runner.sweeps.sweep_directory import Attempt
from runner.system.status import Status
from tests.support.sweeping import ACCURACY, LOSS, finished

METRICS = [LOSS.name, ACCURACY.name]
SETTINGS: dict[str, Any] = {"pruner": {"_target_": "optuna.pruners.MedianPruner"}}


def test_the_value_is_the_metrics_or_else_the_objective_of_the_trial() -> None:
    assert LOSS.of(Attempt(0, metrics={"loss": 0.5}, objective=0.25)) == 0.5
    assert LOSS.of(Attempt(0, objective=0.25)) == 0.25
    assert LOSS.of(Attempt(0)) is None
    # The run has replaced the default, which its model does not have.
    replaced = Attempt(0, metrics={"d_loss": 0.25}, objective=0.25)
    assert LOSS.of(replaced) == 0.25
    assert replace(LOSS, is_named=True).of(replaced) is None
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
        finished(5, None),
    ]
    assert [trial.trial for trial in ranked_trials(trials, [objective])] == [2, 0, 4, 3, 5, 1]


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


def test_metrics_that_only_the_built_model_tells_are_not_refused() -> None:
    goals = {"objectives": {"validation/recall@5": "maximize"}}
    (objective,) = objectives_of(goals, LOSS, None)
    assert (objective.name, objective.goal) == ("validation/recall@5", Goal.maximize)
    assert objective.is_named
