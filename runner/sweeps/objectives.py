"""Objectives, which rank trials, and a search's constraints on metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from runner.config.choices import Goal
from runner.config.instantiation import build_target
from runner.errors import ConfigError, Problem, ranked
from runner.sweeps.points import mapping_setting
from runner.sweeps.sweep_directory import FAILURES, Attempt
from runner.system.status import Status

Constraint = Callable[[Mapping[str, float]], float]
_Converted = TypeVar("_Converted")


@dataclass(frozen=True)
class Objective:
    """A metric, such as `validation/loss`, that decides which trial is better."""

    name: str
    goal: Goal

    def of(self, attempt: Attempt) -> float | None:
        """Returns the value at the trial's best step; None without an evaluation."""
        return attempt.metrics.get(self.name.removeprefix("validation/"), attempt.objective)

    def on(self, split: str) -> Objective:
        """Returns the same metric of another split."""
        return replace(self, name=f"{split}/{self.name.removeprefix('validation/')}")

    def loss(self, value: float) -> float:
        """Returns a value such that less is better, and NaN worst."""
        if math.isnan(value):
            return math.inf
        return -value if self.goal is Goal.maximize else value


def fail_if_nan(attempt: Attempt, objectives: Sequence[Objective]) -> Attempt:
    """Returns the attempt, as a failure if it finished and an objective is NaN or missing."""
    if attempt.status is not Status.FINISHED:
        return attempt
    values = {objective.name: objective.of(attempt) for objective in objectives}
    unusable = [
        f"{name} is {'missing' if value is None else value}"
        for name, value in values.items()
        if value is None or math.isnan(value)
    ]
    if not unusable:
        return attempt
    return replace(attempt, status=Status.FAILED, message="; ".join(unusable), exit_code=1)


def ranked_trials(trials: Sequence[Attempt], objectives: Sequence[Objective]) -> list[Attempt]:
    """Returns the trials by the first objective, the best first.

    Then come trials without a value, trials that violate a constraint, and failures.
    """
    first = objectives[0]

    def key(trial: Attempt) -> tuple[bool, bool, float, int]:
        value = first.of(trial)
        loss = math.inf if value is None else first.loss(value)
        return (trial.status in FAILURES, trial.infeasible, loss, trial.trial)

    return sorted(trials, key=key)


def objectives_of(
    settings: Mapping[str, Any], default: Objective, metrics: Sequence[str]
) -> list[Objective]:
    """Returns `hydra.sweeper.objectives`, by default the experiment's objective.

    `metrics` are the names in an evaluation, such as `validation/loss`.

    Raises:
      ConfigError: with every mistake: they are not a mapping, a goal does not exist, nor does a
        metric, or a pruner is to compare several objectives.
    """
    example = "{validation/loss: minimize}"
    goals = mapping_setting("objectives", settings.get("objectives"), example)
    problems = [
        Problem(
            f"hydra.sweeper.objectives.{name} is {goal!r}",
            "it must be a goal",
            choices=tuple(Goal.__members__),
        )
        for name, goal in goals.items()
        if str(goal) not in Goal.__members__
    ]
    problems += [
        _unknown_metric("objectives", name, metrics)
        for name in goals or [default.name]
        if name not in metrics
    ]
    if problems:
        raise ConfigError(*problems)
    return [Objective(name, Goal[goal]) for name, goal in goals.items()] or [default]


def constraints(settings: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, Constraint]:
    """Returns name -> function of a trial's metrics; at most 0 is feasible.

    `metrics` are the names in an evaluation, such as `validation/loss`.

    Raises:
      ConfigError: with every mistake: an entry has neither valid bounds nor a `_target_`, or there
        is no such metric or target. A constraint that is a function raises it too, when the
        function raises or returns no number.
    """
    example = "{validation/loss: {max: 0.5}}"
    functions: dict[str, Constraint] = {}
    problems: list[Problem] = []
    nodes = mapping_setting("constraints", settings.get("constraints"), example)
    for name, node in nodes.items():
        key = f"hydra.sweeper.constraints.{name}"
        is_function = isinstance(node, Mapping) and "_target_" in node
        metric = name.removeprefix("validation/")
        if not is_function and f"validation/{metric}" not in metrics:
            problems.append(_unknown_metric("constraints", name, metrics))
        try:
            functions[name] = (
                user_function(key, node, float) if is_function else _bounds(key, metric, node)
            )
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return functions


def violation(constraint: Constraint, metrics: Mapping[str, float]) -> float:
    """Returns by how much a trial violates a constraint, in the metric's unit.

    Infinite where that is unknown: the trial was never evaluated, or its metric is NaN or missing.
    Optuna accepts no NaN.
    """
    excess = constraint(metrics) if metrics else math.nan
    return math.inf if math.isnan(excess) else excess


def _unknown_metric(setting: str, name: str, metrics: Sequence[str]) -> Problem:
    state = f"hydra.sweeper.{setting} names {name!r}"
    return Problem(state, "no evaluation gives it", choices=ranked(name, metrics))


def _bounds(key: str, metric: str, node: Any) -> Constraint:
    bounds = node if isinstance(node, Mapping) else {}
    numbers = all(type(bound) in (int, float) for bound in bounds.values())
    low: float = bounds.get("min", -math.inf)
    high: float = bounds.get("max", math.inf)
    # A comparison with NaN is false.
    if not bounds or set(bounds) - {"min", "max"} or not numbers or not low <= high:
        raise ConfigError.of(
            f"{key} is {node!r}",
            "it must be a mapping with a number `min`, a `max` not below it, or a `_target_`",
            f"for example {{{metric}: {{max: 0.5}}}} or {{{metric}: {{_target_: my.fn}}}}",
        )

    def violated(metrics: Mapping[str, float]) -> float:
        value = metrics.get(metric, math.nan)
        return max(value - high, low - value)

    return violated


def user_function(
    key: str, node: Mapping[str, Any], convert: Callable[[Any], _Converted]
) -> Callable[[Any], _Converted]:
    """Returns the function that a node names, of one argument; `convert` checks its result.

    Raises:
      ConfigError: there is no such function. The function that is returned raises it too, for any
        error of the user's function or of `convert`.
    """
    function = build_target(key, {**node, "_partial_": True})

    def call(argument: Any) -> _Converted:
        try:
            return convert(function(argument))
        except Exception as error:  # It is the user's, and may raise anything.
            state = f"{key}: {node['_target_']} fails"
            cause = f"{type(error).__name__}: {error}"
            raise ConfigError.of(state, cause, "fix the function") from error

    return call
