"""`hydra/sweeper: grid`, over every combination of the swept values."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override, RangeSweep

from runner.config.spelling import plain, plain_node
from runner.errors import ConfigError, Problem
from runner.sweeps.execution import Execution
from runner.sweeps.points import ComposedPoint, Point, name_of
from runner.sweeps.sweep_directory import DIED, Attempt, SweepDirectory
from runner.sweeps.sweeper import RunnerSweeper
from runner.system.status import Status


class GridSweeper(RunnerSweeper):
    """Runs every combination; when repeated, skips the trials that have finished.

    Args:
      params: key -> values, in the grammar of the command line, which wins over it.
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._params: Any = plain_node(params)

    def points(self, overrides: Sequence[Override]) -> list[Point]:
        """Returns all combinations."""
        return grid([*self.parsed_params(self._params, overrides), *overrides])

    def identity(self) -> str:
        """Returns the values that are not on the command line."""
        return json.dumps(self._params, sort_keys=True) if self._params else ""

    def trials(
        self, composed: Sequence[ComposedPoint], execution: Execution, directory: SweepDirectory
    ) -> list[Attempt]:
        """Runs the trials that have not finished."""
        before = [file.settle(say=self.screen.line) for file in directory.attempts()]
        numbers = _numbers([each.point for each in composed], before)
        finished = {
            (each.trial, each.fingerprint): each
            for each in before
            if each.status is Status.FINISHED
        }
        done: dict[int, Attempt] = {}
        left: list[Attempt] = []
        for number, each in zip(numbers, composed, strict=True):
            if (number, each.fingerprint) in finished:
                done[number] = finished[number, each.fingerprint]
                continue
            overrides, values = each.point.overrides, each.point.values
            metric = each.config.train.objective
            left.append(Attempt(number, 1, overrides, values, each.fingerprint, metric))
        if done:
            self.screen.line(f"{len(done)} of {len(composed)} trials have finished before")
        # A trial whose process died may end this one too: it runs after all others, and of several
        # the one that died longest ago runs first.
        deaths = {a.trial: place for place, a in enumerate(before) if a.message.startswith(DIED)}
        left.sort(key=lambda each: deaths.get(each.trial, -1))
        done |= {attempt.trial: attempt for attempt in execution.run(left)}
        return [done[number] for number in numbers]


def grid(overrides: Sequence[Override]) -> list[Point]:
    """Returns every combination of the swept values; the last key changes fastest.

    Raises:
      ConfigError: for an interval, for a sweep without values or with a repeated value, and for a
        swept key that is given twice.
    """
    swept = [each for each in overrides if each.is_sweep_override()]
    problems = [
        Problem(
            f"{each.input_line} is an interval",
            "a grid needs a list of values",
            f"search it, hydra/sweeper=optuna, or list values: {name_of(each)}=1,2",
        )
        for each in swept
        if each.is_interval_sweep()
    ]
    problems += [
        Problem(
            f"{each.input_line} has no values",
            "a trial needs one",
            "correct its ends, its step or its pattern",
        )
        for each in swept
        if not each.is_interval_sweep() and not _values(each)
    ]
    problems += [*_given_twice(overrides), *_same_value_twice(swept)]
    if problems:
        raise ConfigError(*problems)
    dimensions = [
        [
            (f"{each.get_key_element()}={value}", name_of(each), plain(value))
            for value in _values(each)
        ]
        if each.is_sweep_override()
        else [(str(each.input_line), "", "")]
        for each in overrides
    ]
    return [
        Point(
            tuple(override for override, _, _ in chosen),
            {name: value for _, name, value in chosen if name},
        )
        for chosen in itertools.product(*dimensions)
    ]


def _values(override: Override) -> list[str]:
    value = override.value()
    if isinstance(value, RangeSweep) and value.step == 0:
        return []  # Hydra raises an error that does not name the override.
    return list(override.sweep_string_iterator())


def _given_twice(overrides: Sequence[Override]) -> list[Problem]:
    """Returns a problem for each swept key that another override replaces in every trial."""
    found: dict[str, list[Override]] = {}
    for override in overrides:
        if not override.is_delete():
            found.setdefault(name_of(override), []).append(override)
    return [
        Problem(
            f"{name} is given {len(same)} times: {' '.join(str(each.input_line) for each in same)}",
            "the last one would hold in every trial",
            "give all its values in one override",
        )
        for name, same in found.items()
        if len(same) > 1 and any(each.is_sweep_override() for each in same)
    ]


def _same_value_twice(swept: Sequence[Override]) -> list[Problem]:
    """Returns a problem for each value that several trials would share."""
    return [
        Problem(
            f"{each.input_line} lists {value!r} {count} times",
            "trials of the same values give the same result",
            "list it once; to repeat a trial, give it several seeds: seed=1,2",
        )
        for each in swept
        if not each.is_interval_sweep()
        for value, count in Counter(_spelled_once(plain(one)) for one in _values(each)).items()
        if count > 1
    ]


def _spelled_once(value: str) -> str:
    """Returns a number in one spelling, so that 1 and 1.0 are equal; any other value as it is."""
    try:
        return str(float(value)).removesuffix(".0")
    except ValueError:
        return value


def _numbers(points: Sequence[Point], attempts: Sequence[Attempt]) -> list[int]:
    """Returns the number of each trial: the one it had before, also with keys in another order."""
    known = {frozenset(attempt.values.items()): attempt.trial for attempt in attempts}
    unused = itertools.count(max(known.values(), default=-1) + 1)
    values = [frozenset(point.values.items()) for point in points]
    return [known[each] if each in known else next(unused) for each in values]
