"""Objectives, which rank trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runner.config.choices import Goal
from runner.config.training_schema import metric_of
from runner.errors import ConfigError, Problem, ranked
from runner.sweeps.points import mapping_setting
from runner.sweeps.sweep_directory import FAILURES, Attempt
from runner.system.status import Status


@dataclass(frozen=True)
class Objective:
    """A metric, such as `validation/loss`, that decides which trial is better.

    Attributes:
      name: the metric's.
      goal: whether a smaller or a larger value is better.
      is_named: whether the sweeper's settings name it. A run whose model has no such metric takes
        another in place of the experiment's default, and a trial's `objective` is that one's value.
    """

    name: str
    goal: Goal
    is_named: bool = field(default=False, compare=False)

    def of(self, attempt: Attempt) -> float | None:
        """Returns the value at the trial's best step; None without an evaluation."""
        is_missing = self.is_named and attempt.metrics
        default = None if is_missing else attempt.objective
        return attempt.metrics.get(metric_of(self.name), default)

    def on(self, split: str) -> Objective:
        """Returns the same metric of another split."""
        return replace(self, name=f"{split}/{metric_of(self.name)}")

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

    Then come trials without a value, and failures.
    """
    first = objectives[0]

    def key(trial: Attempt) -> tuple[bool, float, int]:
        value = first.of(trial)
        loss = math.inf if value is None else first.loss(value)
        return (trial.status in FAILURES, loss, trial.trial)

    return sorted(trials, key=key)


def objectives_of(
    settings: Mapping[str, Any], default: Objective, metrics: Sequence[str] | None
) -> list[Objective]:
    """Returns `hydra.sweeper.objectives`, by default the experiment's objective.

    `metrics` are the names in an evaluation, such as `validation/loss`; None where only the built
    model tells.

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
        Problem(
            f"hydra.sweeper.objectives names {name!r}",
            "no evaluation gives it",
            choices=ranked(name, metrics or ()),
        )
        for name in goals or [default.name]
        if metrics is not None and name not in metrics
    ]
    if problems:
        raise ConfigError(*problems)
    return [Objective(name, Goal[goal], is_named=True) for name, goal in goals.items()] or [default]
