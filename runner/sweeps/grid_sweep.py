"""A sweep over every combination of values."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from runner.sweeps.attempt import DIED, Attempt, TrialStatus, end_of
from runner.sweeps.execution import Execution, Planned
from runner.sweeps.points import ComposedPoint, Point, grid
from runner.sweeps.sweep_directory import SweepDirectory
from runner.sweeps.sweeper import RunnerSweeper


class GridSweep(RunnerSweeper):
    """Sweeps over the combinations; the same command again skips the trials that have finished.

    Args:
      params: key -> values, in the grammar of the command line, which wins over it.
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._params: Any = (
            OmegaConf.to_container(params, resolve=True) if OmegaConf.is_config(params) else params
        )

    def points(self, overrides: Sequence[Override]) -> list[Point]:
        """Returns all combinations."""
        return grid([*self.parsed_params(self._params, overrides), *overrides])

    def identity(self) -> str:
        """Returns the values that are not on the command line."""
        return json.dumps(self._params, sort_keys=True) if self._params else ""

    def trials(
        self, composed: Sequence[ComposedPoint], execution: Execution, directory: SweepDirectory
    ) -> list[Attempt]:
        """Runs those that have not finished."""
        attempts = [end_of(file, self.screen.line) for file in directory.attempts()]
        numbers = _numbers([each.point for each in composed], attempts)
        finished = {
            (each.trial, each.fingerprint): each
            for each in attempts
            if each.status is TrialStatus.FINISHED
        }
        done: dict[int, Attempt] = {}
        planned = []
        for number, each in zip(numbers, composed, strict=True):
            known = finished.get((number, each.fingerprint))
            if known is not None:
                done[number] = known
            else:
                metric = each.config.train.objective
                planned.append(Planned(number, each.point, each.fingerprint, metric))
        if done:
            self.screen.line(f"{len(done)} of {len(composed)} trials have finished before")
        deaths = _deaths(attempts)
        planned.sort(key=lambda each: deaths.get(each.number, -1))
        done |= {attempt.trial: attempt for attempt in execution.run(planned)}
        return [done[number] for number in numbers]


def _deaths(attempts: Sequence[Attempt]) -> dict[int, int]:
    """Returns trial -> the place of its last attempt, where that one's process died.

    Such a trial may take the process that sweeps with it, each time: those that can end come first,
    and of the others those whose turn was longest ago.
    """
    started = {
        attempt.trial: (place, attempt)
        for place, attempt in enumerate(attempts)
        if attempt.status is not TrialStatus.SKIPPED
    }
    return {
        trial: place
        for trial, (place, attempt) in started.items()
        if attempt.status is TrialStatus.KILLED and attempt.message.startswith(DIED)
    }


def _numbers(points: Sequence[Point], attempts: Sequence[Attempt]) -> list[int]:
    """Returns the number of each trial: the one that it had before, in whatever place.

    The same sweep may be asked for with its keys in another order. Where trials have the same
    values, the first of them has the first number.
    """
    before: dict[frozenset[tuple[str, str]], list[int]] = {}
    for attempt in attempts:
        known = before.setdefault(frozenset(attempt.values.items()), [])
        if attempt.trial not in known:
            known.append(attempt.trial)
    unused = itertools.count(max((each.trial for each in attempts), default=-1) + 1)
    numbers = []
    for point in points:
        known = before.get(frozenset(point.values.items()), [])
        numbers.append(known.pop(0) if known else next(unused))
    return numbers
