"""The report at the end of a sweep: tables, figures, and the files and tags of its parent run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.config.command import on_run
from runner.config.masking import Mask
from runner.config.schema import SweepConfig
from runner.console import Listing, Screen
from runner.errors import Problem, SweepError
from runner.sweeps.bands import Band, bands, short_number, short_value, threshold_rows
from runner.sweeps.objectives import Objective, ranked_trials
from runner.sweeps.sweep_directory import FAILURES, Attempt
from runner.system.status import Status
from runner.tracking import Tracker
from runner.tracking.stored_runs import DESCRIPTION_TAG


def rows(trials: Sequence[Attempt], objectives: Sequence[Objective]) -> list[list[str]]:
    """Returns the table of trials, its head first.

    Objectives, and swept values with a fraction, have six significant digits; `trials.json` has
    all.
    """
    swept = list(dict.fromkeys(key for trial in trials for key in trial.values))
    head = ["trial", *swept, *(objective.name for objective in objectives), "status", "run"]
    body = [
        [
            str(trial.trial),
            *(short_value(trial.values.get(key, "")) for key in swept),
            *(short_number(objective.of(trial)) for objective in objectives),
            trial.status.value,
            "" if trial.run_dir is None else "/".join(trial.run_dir.split("/")[-2:]),
        ]
        for trial in ranked_trials(trials, objectives)
    ]
    return [head, *body]


def failures(trials: Sequence[Attempt]) -> list[str]:
    """Returns a line for each trial that failed, or several where its message has several."""
    lines = []
    for trial in trials:
        if trial.status in FAILURES:
            tries = f" ({trial.number} attempts)" if trial.number > 1 else ""
            first, *rest = trial.message.splitlines() or ["no message"]
            lines += [f"{trial} {trial.status.value}{tries}: {first}", *rest]
    return lines


def columns(table: Sequence[Sequence[str]]) -> str:
    """Returns a table whose cells are aligned, never folded; Rich takes long for 10,000 rows."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join(lines) + "\n"


def masked_trials(trials: Sequence[Attempt], mask: Mask) -> list[Attempt]:
    """Returns the trials with the values of secret keys masked.

    Several values of one key remain distinct, as `***1` and `***2`, so that tables, bands and
    figures keep their trials apart.
    """
    secrets: dict[str, list[str]] = {}

    def masked(key: str, value: str) -> str:
        shown = str(mask.value(key, value))
        if shown == value:
            return value
        values = secrets.setdefault(key, [])
        if value not in values:
            values.append(value)
        return f"{shown}{values.index(value) + 1}"

    return [
        replace(
            trial,
            overrides=tuple(mask.overrides(trial.overrides)),
            values={key: masked(key, value) for key, value in trial.values.items()},
        )
        for trial in trials
    ]


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of a sweep.

    Attributes:
      trials: the last attempt of each.
      objectives: decide which trial is better.
      settings: which tables and figures are wanted.
      best: the best trials.
      study: Optuna's; None to build one from the trials.
      failed: the trials because of which the sweep has failed.
      rerun: what the same command does about them.
      screen: where to print.
    """

    trials: Sequence[Attempt]
    objectives: Sequence[Objective]
    settings: SweepConfig
    best: Sequence[Attempt]
    study: Any
    failed: Sequence[Attempt]
    rerun: str
    screen: Screen

    def record(self, tracker: Tracker, folder: Path) -> dict[str, str]:
        """Records tables and figures, stored in `folder`, and returns tags of the parent run."""
        tags = {
            "runner.sweep.trials": str(len(self.trials)),
            "runner.sweep.failed": str(sum(trial.status in FAILURES for trial in self.trials)),
        }
        if self.best:
            tags["runner.sweep.best"] = json.dumps([dict(trial.values) for trial in self.best])
            tags["runner.sweep.best_run"] = json.dumps([trial.run_dir for trial in self.best])
            tags[DESCRIPTION_TAG] = "```\n" + "\n".join(self._best_lines()) + "\n```"
        lines = (f"{line}\n" for line in failures(self.trials))
        table = columns(rows(self.trials, self.objectives))
        tracker.log_text("".join([table, *lines]), "summary.txt")
        trials = json.dumps(list(map(asdict, self.trials)), indent=2)
        tracker.log_text(trials, "trials.json")
        for title, steps in self._steps_to_threshold():
            tracker.log_text(f"{title}\n{columns(steps)}", "steps_to_threshold.txt")
        if self.settings.figures and self.best:
            self._draw(tracker, folder / "figures")
        return tags

    def show(self) -> None:
        """Prints the tables.

        Raises:
          SweepError: trials failed.
        """
        self.screen.line("")
        self._show_table(rows(self.trials, self.objectives))
        for line in failures(self.trials):
            self.screen.line(line)
        for title, steps in self._steps_to_threshold():
            self.screen.line(f"\n{title}")
            self._show_table(steps)
        for line in self._best_lines():
            self.screen.line(line)
        if self.failed:
            codes = {trial.exit_code for trial in self.failed}
            skipped = sum(trial.status is Status.SKIPPED for trial in self.trials)
            rest = f", {skipped} not started" if skipped else ""
            state = f"{len(self.failed)} of {len(self.trials)} trials failed{rest}"
            problem = Problem(state, remedy=self.rerun)
            raise SweepError(problem, codes.pop() if len(codes) == 1 else 1)

    def _show_table(self, table: Sequence[Sequence[str]]) -> None:
        head, *body = table
        named = [name for name in head[1:] if name not in ("status", "run")]
        self.screen.show(Listing(head, body, named), columns(table))

    def _best_lines(self) -> Iterator[str]:
        """Yields where the best trial is, and the commands that evaluate and export it."""
        for trial in self.best:
            if trial.run_dir is None:  # Nothing was trained.
                return
            values = ", ".join(
                f"{objective.name} {short_number(objective.of(trial))}"
                for objective in self.objectives
            )
            yield f"best:    {trial}: {values}, in {trial.run_dir}"
            if len(self.best) == 1:
                yield f"test:    {on_run('evaluate', Path(trial.run_dir))}"
                yield f"export:  {on_run('export', Path(trial.run_dir))}"

    def _steps_to_threshold(self) -> Iterator[tuple[str, list[list[str]]]]:
        """Yields the title and the table, if one is wanted and a trial has finished."""
        objective, threshold = self.objectives[0], self.settings.threshold
        if threshold is not None and self._bands:
            table = threshold_rows(self._bands, objective, threshold)
            yield f"steps to {objective.name} {threshold:g}", table

    @cached_property
    def _bands(self) -> list[Band]:
        return bands(self.trials, self.objectives[0], self.settings.bands)

    def _draw(self, tracker: Tracker, folder: Path) -> None:
        # Importing Matplotlib takes time that a sweep without figures need not wait for.
        from runner.sweeps import study_figures
        from runner.training.figures import Plot, draw

        plots: dict[str, Plot] = {}
        try:
            study = self.study or study_figures.study_of(self.trials, self.objectives)
        except ImportError as error:
            self.screen.line(f'no further figures: {error}; pip install "runner[optuna]"')
        else:
            plots = study_figures.study_plots(study, self.objectives)
        plots |= study_figures.band_plots(self._bands, self.objectives[0], self.settings)
        for file in draw(plots, folder):
            tracker.log_artifact(file, "figures")
