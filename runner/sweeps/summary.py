"""What decides which trial of a sweep is better."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.table import Table
from rich.text import Text

from runner.config.choices import Goal
from runner.sweeps.attempt import FAILURES, Attempt


@dataclass(frozen=True)
class Objective:
    """A metric that decides which trial is better.

    Attributes:
      name: such as `validation/loss`.
      goal: whether larger or smaller is better.
    """

    name: str
    goal: Goal

    def of(self, attempt: Attempt) -> float | None:
        """Returns the trial's value, that of its best step; None without an evaluation."""
        value = attempt.metrics.get(self.name.removeprefix("validation/"))
        if value is None:
            return attempt.objective
        return value

    def on(self, split: str) -> Objective:
        """Returns the same metric of another split."""
        return replace(self, name=f"{split}/{self.name.removeprefix('validation/')}")


# Not a whole number: a seed is told from others by its last digits.
_FRACTION = re.compile(r"[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def ranked_trials(trials: Sequence[Attempt], objectives: Sequence[Objective]) -> list[Attempt]:
    """Returns the trials by the first objective, the best first; then those without, and failures.

    Those that violate a constraint come after all that do not, before the failures. NaN
    is worse than any number.
    """
    first = objectives[0]

    def key(trial: Attempt) -> tuple[bool, bool, bool, float, int]:
        value = first.of(trial)
        known = value is not None and not math.isnan(value)
        sign = -1.0 if first.goal is Goal.maximize else 1.0
        return (
            trial.status in FAILURES,
            trial.infeasible,
            not known,
            sign * value if known and value is not None else 0.0,
            trial.trial,
        )

    return sorted(trials, key=key)


def rows(trials: Sequence[Attempt], objectives: Sequence[Objective]) -> list[list[str]]:
    """Returns the table, its head first.

    Objectives, and swept values with a fraction, have six significant digits; `trials.json` has
    all.
    """
    swept = list(dict.fromkeys(key for trial in trials for key in trial.values))
    head = ["trial", *swept, *(each.name for each in objectives), "status", "run"]
    body = [
        [
            str(trial.trial),
            *(short_value(trial.values.get(key, "")) for key in swept),
            *(_number(each.of(trial)) for each in objectives),
            trial.status.value + (", infeasible" if trial.infeasible else ""),
            _run(trial),
        ]
        for trial in ranked_trials(trials, objectives)
    ]
    return [head, *body]


def short_value(value: str) -> str:
    """Returns a swept number with a fraction to six significant digits; all else as it is."""
    if not _FRACTION.fullmatch(value):
        return value
    short = _number(float(value))
    return short if float(short) != float(value) else value


def failures(trials: Sequence[Attempt]) -> list[str]:
    """Returns a line for each trial that failed, or several where its message has several."""
    lines = []
    for trial in trials:
        if trial.status in FAILURES:
            values = " ".join(f"{key}={value}" for key, value in trial.values.items())
            tries = f" ({trial.number} attempts)" if trial.number > 1 else ""
            first, *rest = trial.message.splitlines() or ["no message"]
            lines += [f"trial {trial.trial} {values} {trial.status.value}{tries}: {first}", *rest]
    return lines


def text(trials: Sequence[Attempt], objectives: Sequence[Objective]) -> str:
    """Returns the table in columns, never folded, and the failures below it."""
    return "\n".join([*columns(rows(trials, objectives)), *failures(trials)]) + "\n"


def columns(table: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table, its cells below each other."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def rich_table(cells: Sequence[Sequence[str]], title: str) -> Table:
    """Returns a table for a terminal; the first row is its head.

    Cells are folded where the terminal is narrow, and never cut: their ends tell runs apart.
    """
    head, *body = cells
    table = Table(title=title, title_justify="left")
    for name in head:
        table.add_column(Text(name), overflow="fold")
    for row in body:
        table.add_row(*map(Text, row))
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _run(trial: Attempt) -> str:
    return "" if trial.run_dir is None else "/".join(trial.run_dir.split("/")[-2:])
