"""A sweep over every combination of values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from runner.sweeps.attempt import Attempt, TrialStatus
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
        self._params: Mapping[str, Any] = (
            OmegaConf.to_container(params, resolve=True)  # type: ignore[assignment]
            if OmegaConf.is_config(params)
            else params or {}
        )

    def points(self, overrides: Sequence[Override]) -> list[Point]:
        """Returns all combinations."""
        return grid([*self.parsed_params(self._params, overrides), *overrides])

    def search(self) -> str:
        """Returns the values that are not on the command line."""
        return json.dumps(self._params, sort_keys=True) if self._params else ""

    def trials(
        self, composed: Sequence[ComposedPoint], execution: Execution, directory: SweepDirectory
    ) -> list[Attempt]:
        """Runs those that have not finished."""
        finished = _finished(directory)
        done: dict[int, Attempt] = {}
        planned = []
        for number, each in enumerate(composed):
            known = finished.get((number, each.fingerprint))
            if known is not None:
                done[number] = known
            else:
                metric = each.config.train.objective
                planned.append(Planned(number, each.point, each.fingerprint, metric))
        if done:
            self.screen.line(f"{len(done)} of {len(composed)} trials have finished before")
        done |= {attempt.trial: attempt for attempt in execution.run(planned)}
        return [done[number] for number in range(len(composed))]


def _finished(directory: SweepDirectory) -> dict[tuple[int, str], Attempt]:
    """Returns trial and fingerprint -> the attempt that finished."""
    attempts = [file.read() for file in directory.attempts()]
    return {
        (each.trial, each.fingerprint): each
        for each in attempts
        if each.status is TrialStatus.FINISHED
    }
