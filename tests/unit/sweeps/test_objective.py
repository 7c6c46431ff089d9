from __future__ import annotations

from runner.config.choices import Goal
from runner.sweeps.attempt import Attempt
from runner.sweeps.summary import Objective


def test_the_value_is_the_metrics_or_else_the_objective_of_the_trial() -> None:
    objective = Objective("validation/loss", Goal.minimize)
    assert objective.of(Attempt(0, 1, (), {}, metrics={"loss": 0.5}, objective=0.25)) == 0.5
    assert objective.of(Attempt(0, 1, (), {}, objective=0.25)) == 0.25
    assert objective.of(Attempt(0, 1, (), {})) is None


def test_the_same_metric_of_another_split() -> None:
    objective = Objective("validation/loss", Goal.minimize).on("test")
    assert objective == Objective("test/loss", Goal.minimize)
    assert objective.of(Attempt(0, 1, (), {}, objective=0.25)) == 0.25
