"""Samplers of searches."""

from __future__ import annotations

from typing import Any

from optuna.samplers import RandomSampler
from optuna.storages import InMemoryStorage


class FailsLater(RandomSampler):
    """Draws nothing after some trials of a study that is not in memory."""

    def __init__(self, after: int = 1, seed: int | None = 0) -> None:
        super().__init__(seed)
        self._after = after

    def sample_independent(self, study: Any, trial: Any, *arguments: Any) -> Any:
        if trial.number >= self._after and not isinstance(study._storage, InMemoryStorage):
            raise ValueError("it has no more to draw")
        return super().sample_independent(study, trial, *arguments)


class WorseEachTime(RandomSampler):
    """Draws the end of an interval, and afterwards its beginning."""

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        return distribution.low if trial.number else distribution.high
