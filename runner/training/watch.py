"""The class that a sweep extends to watch its runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SWEEP_TAG = "runner.sweep"
"""Prefix of the tags with the swept values of a trial."""


class TrialWatch:
    """Watches a run's evaluations and may end it; by default does neither.

    Attributes:
      parent: directory of the tracked run that this run is part of; None outside sweeps.
      tags: `runner.sweep.KEY` -> swept value.
      pruned: whether the loop is to end because other trials are better.
    """

    parent: str | None = None
    tags: Mapping[str, str] = {}
    pruned: bool = False

    def name(self, container: Path) -> str:
        """Returns what identifies the trial below the configured `run_dir`; empty for no trial."""
        return ""

    def started(self, run_dir: Path) -> None:
        """Takes the run's directory, once there is one."""

    def evaluated(self, metrics: Mapping[str, float], step: int) -> None:
        """Takes the metrics of an evaluation, after which `pruned` may be true."""

    def check(self) -> None:
        """Raises `PrunedRunError` if the trial is pruned."""

    def fail_if_nan(self, objective: float) -> None:
        """Raises `SweepError` if the trial, trained to its end, is a failure."""
