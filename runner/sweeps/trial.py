"""A trial of a sweep while it runs: what it is told, and what it tells."""

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

# Takes the metrics of an evaluation and its step; says whether the trial is to be pruned.
Report = Callable[[Mapping[str, float], int], bool]


class Trial(TrialWatch):
    """What a run knows of the sweep that it is a part of.

    Attributes:
      parent: directory of the tracked run of the sweep.
      number: of the trial in its sweep.
      values: swept key -> value.
      tags: the same as tags.
      report: is given each evaluation; None where nobody asks for them.
      run_dir: the run's directory, once it has one.
      curve: step -> metrics of each evaluation of the run, those before an interruption included.
      pruned: whether the loop is to end because others are better.
    """

    def __init__(
        self,
        parent: str,
        values: Mapping[str, str],
        report: Report | None = None,
        number: int = 0,
        starting: Callable[[Path], object] | None = None,
    ) -> None:
        """Stores its arguments.

        Args:
          parent: directory of the tracked run of the sweep.
          values: swept key -> value.
          report: is given each evaluation; None where nobody asks for them.
          number: of the trial in its sweep.
          starting: is told the run's directory; None where nobody asks for it.
        """
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
        """Returns what tells the trial from all others, wherever the folders are moved together.

        Args:
          container: the configured `run_dir`.
        """
        return f"{os.path.relpath(self.parent, container)}:{self.number}"

    def started(self, run_dir: Path) -> None:
        """Tells the run's directory, which remembers the evaluations of a run that is resumed."""
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
        """Raises `SweepError` if the trial, trained to its end, has come to nothing."""
        if math.isnan(objective):
            raise SweepError(Problem("the objective is nan"))


def _append(file: Path, step: int, metrics: Mapping[str, float]) -> None:
    line = json.dumps([step, {name: float(value) for name, value in metrics.items()}])
    try:
        with file.open("a") as stream:
            # Not behind what a dead process may have left of a line.
            stream.write(f"\n{line}")
    except OSError as error:  # No reason to end the training.
        logger.warning("The learning curve in %s lacks step %d: %s", file, step, error)


def _read_curve(file: Path) -> dict[int, Mapping[str, float]]:
    """Returns step -> metrics, of several evaluations of one step the last."""
    curve: dict[int, Mapping[str, float]] = {}
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            step, metrics = json.loads(line)
        except ValueError:
            continue  # Empty, or its process died or the disk was full meanwhile.
        curve[step] = metrics
    return curve
