"""The end of a sweep: what its parent run and its folder keep of all trials, and what is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner.config.masking import Mask
from runner.config.schema import SweepConfig
from runner.console import Screen
from runner.errors import Problem, SweepError
from runner.sweeps.attempt import FAILURES, Attempt, TrialStatus
from runner.sweeps.learning_curves import bands, threshold_rows
from runner.sweeps.summary import Objective, columns, failures, rich_table, rows, text
from runner.tracking import Tracker


@dataclass(frozen=True)
class Conclusion:
    """What can be said of all trials of a sweep.

    Attributes:
      trials: the last attempt of each.
      objectives: what decides which one is better.
      settings: which tables and figures are wanted.
      best: gives the best trials.
      study: gives the trials as a study of Optuna's.
      unmended: the failures that are left to the same command.
      again: what that command does about them.
      screen: where to print.
    """

    trials: Sequence[Attempt]
    objectives: Sequence[Objective]
    settings: SweepConfig
    best: Callable[[], list[Attempt]]
    study: Callable[[], Any]
    unmended: Sequence[Attempt]
    again: str
    screen: Screen

    def record(self, tracker: Tracker, folder: Path) -> dict[str, str]:
        """Records tables and figures and returns tags of the parent run.

        Args:
          tracker: of the parent run.
          folder: the sweep's, where the figures stay.
        """
        tags = {
            "runner.sweep.trials": str(len(self.trials)),
            "runner.sweep.failed": str(
                len([each for each in self.trials if each.status in FAILURES])
            ),
        }
        best = self.best()
        if best:
            tags["runner.sweep.best"] = json.dumps([dict(each.values) for each in best])
            tags["runner.sweep.best_run"] = json.dumps([each.run_dir for each in best])
        tracker.log_text(text(self.trials, self.objectives), "summary.txt")
        results = json.dumps([asdict(replace(each, study=None)) for each in self.trials], indent=2)
        tracker.log_text(results, "trials.json")
        steps = self._steps_to_threshold()
        if steps:
            tracker.log_text(steps.text(), "steps_to_threshold.txt")
        if self.settings.figures and best:
            tags |= self._draw(tracker, folder / "figures")
        return tags

    def tell(self) -> None:
        """Prints the tables.

        Raises:
          SweepError: trials failed.
        """
        self.screen.line("")
        table = rich_table(rows(self.trials, self.objectives), "trials, the best first")
        self.screen.show(table, text(self.trials, self.objectives))
        if self.screen.is_terminal:
            for line in failures(self.trials):
                self.screen.line(line)
        steps = self._steps_to_threshold()
        if steps:
            self.screen.show(rich_table(steps.rows, steps.title), f"\n{steps.text()}")
        failed = self.unmended
        skipped = [each for each in self.trials if each.status is TrialStatus.SKIPPED]
        if failed:
            codes = {each.exit_code for each in failed}
            rest = f", {len(skipped)} not started" if skipped else ""
            raise SweepError(
                Problem(
                    f"{len(failed)} of {len(self.trials)} trials failed{rest}",
                    remedy=self.again,
                ),
                codes.pop() if len(codes) == 1 else 1,
            )

    def _draw(self, tracker: Tracker, folder: Path) -> dict[str, str]:
        # Importing Matplotlib takes time that a sweep without figures need not wait for.
        from runner.sweeps.figures import draw_bands

        files = draw_bands(
            bands(self.trials, self.objectives[0], self.settings.bands),
            self.objectives[0],
            folder / "learning_curves.png",
            self.settings.bands,
            self.settings.threshold,
        )
        tags = {}
        try:
            from runner.sweeps.figures import draw, importances
        except ImportError as error:
            self.screen.line(f'no further figures: {error}; pip install "runner[optuna]"')
        else:
            study = self.study()
            files += draw(study, self.objectives, folder, {file.stem for file in files})
            tags["runner.sweep.importances"] = json.dumps(importances(study, self.objectives))
        for file in files:
            tracker.log_artifact(file, "figures")
        return tags

    def _steps_to_threshold(self) -> _Steps | None:
        """Returns the table; None where none is wanted or no trial has finished."""
        found = bands(self.trials, self.objectives[0], self.settings.bands)
        threshold = self.settings.threshold
        if threshold is None or not found:
            return None
        title = f"steps to {self.objectives[0].name} {threshold:g}"
        return _Steps(title, threshold_rows(found, self.objectives[0], threshold))


@dataclass(frozen=True)
class _Steps:
    """A table of the steps that each band took to the threshold."""

    title: str
    rows: list[list[str]]

    def text(self) -> str:
        return "\n".join([self.title, *columns(self.rows)]) + "\n"


def shown_trials(trials: Sequence[Attempt], mask: Mask) -> list[Attempt]:
    """Returns the trials with the values of secret keys masked.

    Several values of one key stay apart, as `***1` and `***2`, so that tables, bands and figures
    tell their trials apart too.
    """
    known: dict[str, list[str]] = {}
    for trial in sorted(trials, key=lambda each: each.trial):
        for key, value in trial.values.items():
            if mask.value(key, value) != value and value not in known.setdefault(key, []):
                known[key].append(value)
    return [
        replace(
            trial,
            overrides=tuple(mask.overrides(trial.overrides)),
            values={
                key: _shown(value, known.get(key, []), str(mask.value(key, value)))
                for key, value in trial.values.items()
            },
        )
        for trial in trials
    ]


def _shown(value: str, masked: Sequence[str], shown: str) -> str:
    return f"{shown}{masked.index(value) + 1}" if len(masked) > 1 and value in masked else shown
