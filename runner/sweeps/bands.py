"""Learning curves of trials that repeat each other, such as with several seeds, as bands."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from runner.sweeps.objectives import Objective
from runner.sweeps.sweep_directory import Attempt
from runner.system.status import Status


@dataclass(frozen=True)
class Band:
    """The learning curves of trials that repeat each other.

    Attributes:
      values: swept key -> value, of the keys in which they agree.
      curves: step -> value of the objective, for each trial.
      steps: at which all of them were evaluated.
      mean: of their values, at each of the steps.
      low: the smallest of their values.
      high: the largest.
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
        return ", ".join(f"{names[key]}={short_value(value)}" for key, value in self.values.items())


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Returns key -> its last part, or the whole key where two end alike."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}


def short_value(value: str) -> str:
    """Returns a swept number with a fraction to six significant digits; all else as it is.

    Seeds, which have none, may differ in their last digits.
    """
    with suppress(ValueError):
        short = short_number(float(value))
        if "." in value and float(short) != float(value):
            return short
    return value


def short_number(value: float | None) -> str:
    """Returns a number to six significant digits; empty for None."""
    return "" if value is None else f"{value:.6g}"


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
    unsorted = [_band(dict(key), curves) for key, curves in groups.items()]
    return sorted(
        unsorted, key=lambda band: objective.loss(band.mean[-1] if band.mean else math.nan)
    )


def _band(values: Mapping[str, str], curves: Sequence[Mapping[int, float]]) -> Band:
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    table = np.array([[curve[step] for step in steps] for curve in curves])
    return Band(
        values,
        tuple(curves),
        tuple(steps),
        mean=tuple(table.mean(axis=0).tolist()),
        low=tuple(table.min(axis=0).tolist()),
        high=tuple(table.max(axis=0).tolist()),
    )


def threshold_rows(
    curves: Sequence[Band], objective: Objective, threshold: float
) -> list[list[str]]:
    """Returns the table of steps to the threshold, its head first.

    A trial that does not reach it takes more steps than it has, so a median may be `> 600`.
    """
    keys = list(dict.fromkeys(key for band in curves for key in band.values))
    names = short_names(keys)
    head = [*names.values(), "reached", "fewest", "median", "most", f"{objective.name} at the end"]
    body = []
    for band in curves:
        steps = [_steps_to(curve, objective, threshold) for curve in band.curves]
        last = max(max(curve) for curve in band.curves)
        counts = (min(steps), statistics.median(steps), max(steps))
        body.append(
            [
                *(short_value(band.values.get(key, "")) for key in keys),
                f"{sum(map(math.isfinite, steps))} of {len(steps)}",
                *(f"{count:g}" if math.isfinite(count) else f"> {last}" for count in counts),
                _end(band),
            ]
        )
    return [head, *body]


def _steps_to(curve: Mapping[int, float], objective: Objective, threshold: float) -> float:
    """Returns the step of the first evaluation that reaches the threshold; infinity without one."""
    worst = objective.loss(threshold)
    reached = (step for step, value in curve.items() if objective.loss(value) <= worst)
    return min(reached, default=math.inf)


def _end(band: Band) -> str:
    if not band.steps:
        return ""
    mean, low, high = band.mean[-1], band.low[-1], band.high[-1]
    spread = f" ({low:.4g} to {high:.4g})" if len(band.curves) > 1 else ""
    return f"{mean:.4g}{spread}"
