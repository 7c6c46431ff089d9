"""A trial of a sweep while it runs: what it is told, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from runner.errors import Problem, PrunedRunError

TAG = "runner.sweep"
"""Prefix of the tags with the swept values of a trial."""

# Takes the metrics of an evaluation and its step; says whether the trial is to be pruned.
Report = Callable[[Mapping[str, float], int], bool]


class Trial:
    """What a run knows of the sweep that it is a part of.

    Attributes:
      parent: directory of the tracked run of the sweep.
      values: swept key -> value.
      tags: the same as tags.
      run_dir: the run's directory, once it has one.
      curve: step -> metrics of each evaluation.
      pruned: whether the loop is to end because others are better.
    """

    def __init__(
        self, parent: str, values: Mapping[str, str], report: Report | None = None
    ) -> None:
        """Stores its arguments.

        Args:
          parent: directory of the tracked run of the sweep.
          values: swept key -> value.
          report: is given each evaluation; None where nobody asks for them.
        """
        self.parent = parent
        self.values = dict(values)
        self.tags = {f"{TAG}.{key}": value for key, value in values.items()}
        self.run_dir: Path | None = None
        self.curve: dict[int, Mapping[str, float]] = {}
        self.pruned = False
        self._report = report
        self._step = 0

    def started(self, run_dir: Path) -> None:
        """Tells the run's directory."""
        self.run_dir = run_dir

    def evaluated(self, metrics: Mapping[str, float], step: int) -> None:
        """Reports an evaluation, after which the trial may be pruned."""
        self.curve[step] = metrics
        if self._report is not None and not self.pruned and self._report(metrics, step):
            self.pruned, self._step = True, step

    def check(self) -> None:
        """Raises `PrunedRunError` if the trial is pruned."""
        if self.pruned:
            raise PrunedRunError(Problem(f"pruned at step {self._step}"))
