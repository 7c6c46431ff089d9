"""What a sweep reports at its end: tables, learning curves in bands, and its parent run's files."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from runner.config.masking import Mask
from runner.config.schema import SweepConfig
from runner.config.spelling import on_run
from runner.console import Screen
from runner.errors import Problem, SweepError
from runner.sweeps.objectives import Objective, ranked_trials
from runner.sweeps.sweep_directory import FAILURES, Attempt
from runner.system.status import Status
from runner.tracking import Tracker
from runner.tracking.tracker import DESCRIPTION_TAG


def rows(trials: Sequence[Attempt], objectives: Sequence[Objective]) -> list[list[str]]:
    """Returns the table, its head first.

    Objectives, and swept values with a fraction, have six significant digits; `trials.json` has
    all.
    """
    swept = list(dict.fromkeys(key for trial in trials for key in trial.values))
    head = ["trial", *swept, *(objective.name for objective in objectives), "status", "run"]
    body = [
        [
            str(trial.trial),
            *(short_value(trial.values.get(key, "")) for key in swept),
            *(_number(objective.of(trial)) for objective in objectives),
            trial.status.value + (", infeasible" if trial.infeasible else ""),
            "" if trial.run_dir is None else "/".join(trial.run_dir.split("/")[-2:]),
        ]
        for trial in ranked_trials(trials, objectives)
    ]
    return [head, *body]


def short_value(value: str) -> str:
    """Returns a swept number with a fraction to six significant digits; all else as it is.

    Seeds, which have none, may differ in their last digits.
    """
    with suppress(ValueError):
        short = _number(float(value))
        if "." in value and float(short) != float(value):
            return short
    return value


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


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
    """Returns a table whose cells are aligned, never folded."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join(lines) + "\n"


def rich_table(cells: Sequence[Sequence[str]], title: str) -> Table:
    """Returns a table for a terminal; the first row is its head.

    Cells are folded where the terminal is narrow, and never cut: runs differ in their ends.
    """
    head, *body = cells
    table = Table(title=title, title_justify="left")
    for name in head:
        table.add_column(Text(name), overflow="fold")
    for row in body:
        table.add_row(*map(Text, row))
    return table


@dataclass(frozen=True)
class Band:
    """The learning curves of trials that repeat each other, as with several seeds.

    Attributes:
      values: swept key -> value, of the keys in which they agree.
      curves: of each trial: step -> value of the objective.
      steps: at which all of them were evaluated.
      mean: of their values, at each of the steps.
      low: the least of their values.
      high: the greatest.
    """

    values: Mapping[str, str]
    curves: tuple[Mapping[int, float], ...]
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def label(self) -> str:
        """The values in short, by the last part of their keys where that is unique."""
        names = short_names(list(self.values))
        return ", ".join(f"{names[key]}={short_value(each)}" for key, each in self.values.items())


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Returns key -> its last part, or the whole key where two end alike."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}


def bands(
    trials: Sequence[Attempt], objective: Objective, repeated_over: Collection[str]
) -> list[Band]:
    """Returns a band for each combination of the other swept keys, the best at the end first.

    Only trials that finished count: one that ended early would distort the mean. Of trials with
    equal values, as a search may draw them, only the last counts.

    `repeated_over` are keys in which the trials of one band may differ.
    """
    distinct = {
        frozenset(trial.values.items()): trial
        for trial in trials
        if trial.status is Status.FINISHED and trial.curve
    }
    groups: dict[tuple[tuple[str, str], ...], list[dict[int, float]]] = {}
    for trial in distinct.values():
        key = tuple((k, v) for k, v in trial.values.items() if k not in repeated_over)
        groups.setdefault(key, []).append(dict(trial.curve))
    found = [_band(dict(key), curves) for key, curves in groups.items()]
    return sorted(found, key=lambda band: objective.loss(band.mean[-1] if band.mean else math.nan))


def _band(values: Mapping[str, str], curves: Sequence[Mapping[int, float]]) -> Band:
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    table = np.array([[curve[step] for step in steps] for curve in curves])
    return Band(
        values,
        tuple(curves),
        tuple(steps),
        tuple(table.mean(axis=0).tolist()),
        tuple(table.min(axis=0).tolist()),
        tuple(table.max(axis=0).tolist()),
    )


def threshold_rows(
    found: Sequence[Band], objective: Objective, threshold: float
) -> list[list[str]]:
    """Returns the table of steps to the threshold, its head first.

    A trial that does not reach it takes more steps than it has, so a median may be `> 600`.
    """
    keys = list(dict.fromkeys(key for band in found for key in band.values))
    names = short_names(keys)
    head = [*names.values(), "reached", "fewest", "median", "most", f"{objective.name} at the end"]
    body = []
    for band in found:
        steps = [_steps_to(curve, objective, threshold) for curve in band.curves]
        last = max(max(curve) for curve in band.curves)
        counts = (min(steps), statistics.median(steps), max(steps))
        body.append(
            [
                *(short_value(band.values.get(key, "")) for key in keys),
                f"{sum(map(math.isfinite, steps))} of {len(steps)}",
                *(f"{each:g}" if math.isfinite(each) else f"> {last}" for each in counts),
                _end(band),
            ]
        )
    return [head, *body]


def _steps_to(curve: Mapping[int, float], objective: Objective, threshold: float) -> float:
    """Returns the step of the first evaluation that reaches the threshold; infinity without one."""
    worst = objective.loss(threshold)
    reached = (step for step, each in curve.items() if objective.loss(each) <= worst)
    return min(reached, default=math.inf)


def _end(band: Band) -> str:
    if not band.steps:
        return ""
    mean, low, high = band.mean[-1], band.low[-1], band.high[-1]
    spread = f" ({low:.4g} to {high:.4g})" if len(band.curves) > 1 else ""
    return f"{mean:.4g}{spread}"


def masked_trials(trials: Sequence[Attempt], mask: Mask) -> list[Attempt]:
    """Returns the trials with the values of secret keys masked.

    Several values of one key remain distinct, as `***1` and `***2`, so that tables, bands and
    figures keep their trials apart.
    """
    known: dict[str, list[str]] = {}
    for trial in sorted(trials, key=lambda each: each.trial):
        for key, value in trial.values.items():
            if mask.value(key, value) != value and value not in known.setdefault(key, []):
                known[key].append(value)

    def shown(key: str, value: str) -> str:
        several = known.get(key, ())
        number = several.index(value) + 1 if len(several) > 1 and value in several else ""
        return f"{mask.value(key, value)}{number}"

    return [
        replace(
            trial,
            overrides=tuple(mask.overrides(trial.overrides)),
            values={key: shown(key, value) for key, value in trial.values.items()},
        )
        for trial in trials
    ]


@dataclass(frozen=True)
class Results:
    """The results of a sweep.

    Attributes:
      trials: the last attempt of each.
      objectives: what decides which one is better.
      settings: which tables and figures are wanted.
      best: the best trials.
      study: Optuna's; None to make one of the trials.
      failed: the trials because of which the sweep has failed.
      again: what the same command does about them.
      screen: where to print.
    """

    trials: Sequence[Attempt]
    objectives: Sequence[Objective]
    settings: SweepConfig
    best: Sequence[Attempt]
    study: Any
    failed: Sequence[Attempt]
    again: str
    screen: Screen

    def record(self, tracker: Tracker, folder: Path) -> dict[str, str]:
        """Records tables and figures, kept in `folder`, and returns tags of the parent run."""
        failed = [trial for trial in self.trials if trial.status in FAILURES]
        tags = {
            "runner.sweep.trials": str(len(self.trials)),
            "runner.sweep.failed": str(len(failed)),
        }
        if self.best:
            tags["runner.sweep.best"] = json.dumps([dict(trial.values) for trial in self.best])
            tags["runner.sweep.best_run"] = json.dumps([trial.run_dir for trial in self.best])
            tags[DESCRIPTION_TAG] = "```\n" + "\n".join(self._best_lines()) + "\n```"
        tracker.log_text(self._summary(), "summary.txt")
        trials = [asdict(replace(trial, study=None)) for trial in self.trials]
        tracker.log_text(json.dumps(trials, indent=2), "trials.json")
        steps = self._steps_to_threshold()
        if steps:
            tracker.log_text(f"{self._steps_title}\n{columns(steps)}", "steps_to_threshold.txt")
        if self.settings.figures and self.best:
            tags |= self._draw(tracker, folder / "figures")
        return tags

    def show(self) -> None:
        """Prints the tables.

        Raises:
          SweepError: trials failed.
        """
        self.screen.line("")
        cells = rows(self.trials, self.objectives)
        self.screen.show(rich_table(cells, "trials, the best first"), columns(cells))
        for line in failures(self.trials):
            self.screen.line(line)
        steps = self._steps_to_threshold()
        if steps:
            plain = f"\n{self._steps_title}\n{columns(steps)}"
            self.screen.show(rich_table(steps, self._steps_title), plain)
        for line in self._best_lines():
            self.screen.line(line)
        skipped = [trial for trial in self.trials if trial.status is Status.SKIPPED]
        if self.failed:
            codes = {trial.exit_code for trial in self.failed}
            rest = f", {len(skipped)} not started" if skipped else ""
            state = f"{len(self.failed)} of {len(self.trials)} trials failed{rest}"
            problem = Problem(state, remedy=self.again)
            raise SweepError(problem, codes.pop() if len(codes) == 1 else 1)

    def _best_lines(self) -> Iterator[str]:
        """Yields where the best trial is, and the commands that evaluate and export it."""
        for trial in self.best:
            if trial.run_dir is None:  # Nothing was trained.
                return
            values = ", ".join(f"{each.name} {_number(each.of(trial))}" for each in self.objectives)
            yield f"best:    {trial}: {values}, in {trial.run_dir}"
            if len(self.best) == 1:
                yield f"test:    {on_run('evaluate', Path(trial.run_dir))}"
                yield f"export:  {on_run('export', Path(trial.run_dir))}"

    def _summary(self) -> str:
        """Returns the table and the failures below it."""
        table = columns(rows(self.trials, self.objectives))
        return "".join([table, *(f"{line}\n" for line in failures(self.trials))])

    @property
    def _steps_title(self) -> str:
        return f"steps to {self.objectives[0].name} {self.settings.threshold:g}"

    def _steps_to_threshold(self) -> list[list[str]]:
        """Returns the table; empty where none is wanted or no trial has finished."""
        threshold = self.settings.threshold
        if threshold is None or not self._bands:
            return []
        return threshold_rows(self._bands, self.objectives[0], threshold)

    @cached_property
    def _bands(self) -> list[Band]:
        return bands(self.trials, self.objectives[0], self.settings.bands)

    def _draw(self, tracker: Tracker, folder: Path) -> dict[str, str]:
        # Importing Matplotlib takes time that a sweep without figures need not wait for.
        from runner.sweeps import figures

        plots, tags = {}, {}
        try:
            study = self.study or figures.study_of(self.trials, self.objectives)
        except ImportError as error:
            self.screen.line(f'no further figures: {error}; pip install "runner[optuna]"')
        else:
            plots = figures.study_plots(study, self.objectives)
            importances = figures.importances(study, self.objectives)
            tags["runner.sweep.importances"] = json.dumps(importances)
        plots |= figures.band_plots(self._bands, self.objectives[0], self.settings)
        for file in figures.draw(plots, folder):
            tracker.log_artifact(file, "figures")
        return tags
