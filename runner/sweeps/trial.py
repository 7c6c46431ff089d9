"""A trial of a sweep while it runs: its evaluations, their report, and whether it is pruned."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from runner.errors import Problem, PrunedRunError, SweepError
from runner.runs.run_directory import RunDirectory
from runner.training.watch import SWEEP_TAG, TrialWatch

logger = logging.getLogger(__name__)

# Takes the metrics of an evaluation and its step; returns whether the trial is to be pruned.
Report = Callable[[Mapping[str, float], int], bool]


class Trial(TrialWatch):
    """What a run knows of the sweep that it is a part of.

    Args:
      parent: directory of the tracked run of the sweep.
      values: swept key -> value.
      report: called with each evaluation; None for no reports.
      number: of the trial in its sweep.
      starting: called with the run directory; None for no call.

    Attributes:
      tags: the values as tags.
      run_dir: the run directory, once there is one.
      curve: step -> metrics of each evaluation of the run, those before an interruption included.
      pruned: whether the loop is to end because other trials are better.
    """

    def __init__(
        self,
        parent: str,
        values: Mapping[str, str],
        report: Report | None = None,
        number: int = 0,
        starting: Callable[[Path], object] | None = None,
    ) -> None:
        self.parent: str = parent
        self.number = number
        self.values = dict(values)
        self.tags = {f"{SWEEP_TAG}.{key}": value for key, value in values.items()}
        self.report = report
        self.run_dir: Path | None = None
        self.curve: dict[int, Mapping[str, float]] = {}
        self.pruned = False
        self._starting = starting
        self._step = 0

    def name(self, container: Path) -> str:
        """Returns what identifies the trial, also where runs and sweeps are moved together.

        Args:
          container: the configured `run_dir`.
        """
        return f"{os.path.relpath(self.parent, container)}:{self.number}"

    def started(self, run_dir: Path) -> None:
        """Takes the run directory, which holds the evaluations of a run that is resumed."""
        self.run_dir = run_dir
        self.curve = _read_curve(RunDirectory(run_dir).evaluations)
        if self._starting is not None:
            self._starting(run_dir)

    def evaluated(self, metrics: Mapping[str, float], step: int) -> None:
        """Reports an evaluation, after which the trial may be pruned."""
        self.curve[step] = metrics
        self._keep(metrics, step)
        if self.report is not None and not self.pruned and self.report(metrics, step):
            self.pruned, self._step = True, step

    def _keep(self, metrics: Mapping[str, float], step: int) -> None:
        if self.run_dir is not None:
            _append(RunDirectory(self.run_dir).evaluations, step, metrics)

    def check(self) -> None:
        """Raises `PrunedRunError` if the trial is pruned."""
        if self.pruned:
            raise PrunedRunError(Problem(f"pruned at step {self._step}"))

    def judge(self, objective: float) -> None:
        """Raises `SweepError` if the objective of the trial, trained to its end, is NaN."""
        if math.isnan(objective):
            raise SweepError(Problem("the objective is nan"))


def _append(file: Path, step: int, metrics: Mapping[str, float]) -> None:
    line = json.dumps([step, {name: float(value) for name, value in metrics.items()}])
    try:
        with file.open("a") as stream:
            # On a new line: a process that died may have left half of one.
            stream.write(f"\n{line}")
    except OSError as error:  # Training continues.
        logger.warning("The learning curve in %s lacks step %d: %s", file, step, error)


def _read_curve(file: Path) -> dict[int, Mapping[str, float]]:
    """Returns step -> metrics; of several evaluations of one step, those of the last."""
    curve: dict[int, Mapping[str, float]] = {}
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            step, metrics = json.loads(line)
        except ValueError:
            continue  # Empty, or cut off by the death of its process or a full disk.
        curve[step] = metrics
    return curve
