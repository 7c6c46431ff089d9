"""What decides which trial of a sweep is better."""

from __future__ import annotations

from dataclasses import dataclass, replace

from runner.config import Goal
from runner.sweeps.attempt import Attempt


@dataclass(frozen=True)
class Objective:
    """A metric that decides which trial is better.

    Attributes:
      name: such as `validation/loss`.
      goal: whether larger or smaller is better.
    """

    name: str
    goal: Goal

    def of(self, attempt: Attempt) -> float | None:
        """Returns the trial's value, that of its best step; None without an evaluation."""
        value = attempt.metrics.get(self.name.removeprefix("validation/"))
        if value is None:
            return attempt.objective
        return value

    def on(self, split: str) -> Objective:
        """Returns the same metric of another split."""
        return replace(self, name=f"{split}/{self.name.removeprefix('validation/')}")
