"""What trials that differ in nothing but their seed, for example, have in common as they learn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runner.config.choices import Goal
from runner.config.schema import SweepConfig
from runner.errors import ConfigError, Problem, nearest
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.summary import Objective, short_value


@dataclass(frozen=True)
class Band:
    """The learning curves of trials that repeat each other.

    Attributes:
      values: swept key -> value, of the keys in which they agree.
      curves: one for each trial: step -> value of the objective.
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
        """The values in short, by the last part of their keys where that tells them apart."""
        names = short_names(list(self.values))
        return ", ".join(f"{names[key]}={short_value(each)}" for key, each in self.values.items())


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Returns key -> its last part, or the whole key where two end alike."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}


def check_bands(repeated_over: Collection[str], swept: Collection[str] | None) -> None:
    """Checks the keys of `sweep.bands`; its default is right for every sweep.

    Args:
      repeated_over: the keys.
      swept: those of the sweep; None where they are not known beforehand.

    Raises:
      ConfigError: one of them is not swept.
    """
    if swept is None:
        return
    problems = [
        Problem(
            f"sweep.bands names {each!r}",
            "that is no key of this sweep",
            "name keys that are swept, which repeat a trial",
            nearest(each, swept),
        )
        for each in repeated_over
        if each not in {*SweepConfig().bands, *swept}
    ]
    if problems:
        raise ConfigError(*problems)


def bands(
    trials: Sequence[Attempt], objective: Objective, repeated_over: Collection[str]
) -> list[Band]:
    """Returns a band for each combination of the other swept keys, the best at the end first.

    Only trials that finished count: one that ended early would bend the mean. Of trials with equal
    values, as a search may draw them, only the last counts: they repeat nothing but each other.

    Args:
      trials: the last attempts.
      objective: what the curves show.
      repeated_over: keys in which the trials of one band may differ.
    """
    distinct = {
        frozenset(trial.values.items()): trial
        for trial in trials
        if trial.status is TrialStatus.FINISHED and trial.curve
    }
    groups: dict[tuple[tuple[str, str], ...], list[Attempt]] = {}
    for trial in distinct.values():
        key = tuple((k, v) for k, v in trial.values.items() if k not in repeated_over)
        groups.setdefault(key, []).append(trial)
    found = [
        _band(dict(key), [dict(each.curve) for each in group]) for key, group in groups.items()
    ]
    sign = -1.0 if objective.goal is Goal.maximize else 1.0

    def rank(band: Band) -> tuple[bool, float]:
        last = band.mean[-1] if band.mean else math.nan
        return (math.isnan(last), 0.0 if math.isnan(last) else sign * last)

    return sorted(found, key=rank)


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


def steps_to(curve: Mapping[int, float], threshold: float, goal: Goal) -> float:
    """Returns the step of the first evaluation that reaches the threshold; infinity without one."""
    reached = (
        step
        for step, value in curve.items()
        if (value >= threshold if goal is Goal.maximize else value <= threshold)
    )
    return min(reached, default=math.inf)


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
        steps = [steps_to(curve, threshold, objective.goal) for curve in band.curves]
        last = max(max(curve) for curve in band.curves)
        counts = [_steps(each, last) for each in (min(steps), statistics.median(steps), max(steps))]
        body.append(
            [
                *(short_value(band.values.get(key, "")) for key in keys),
                f"{sum(map(math.isfinite, steps))} of {len(steps)}",
                *counts,
                _end(band),
            ]
        )
    return [head, *body]


def _steps(count: float, last: int) -> str:
    return f"{count:g}" if math.isfinite(count) else f"> {last}"


def _end(band: Band) -> str:
    if not band.steps:
        return ""
    mean, low, high = band.mean[-1], band.low[-1], band.high[-1]
    spread = f" ({low:.4g} to {high:.4g})" if len(band.curves) > 1 else ""
    return f"{mean:.4g}{spread}"
