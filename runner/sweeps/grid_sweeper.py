"""`hydra/sweeper: grid`, over every combination of the swept values."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
        before = [file.finalize(say=self.screen.line) for file in directory.attempts()]
        numbers = _numbers([trial.point for trial in composed], before)
        attempts = [
            Attempt(
                number,
                overrides=trial.point.overrides,
                values=trial.point.values,
                fingerprint=trial.fingerprint,
                metric=trial.config.train.objective,
            )
            for number, trial in zip(numbers, composed, strict=True)
        ]
        fingerprints = {attempt.trial: attempt.fingerprint for attempt in attempts}
        last = {
            attempt.trial: attempt
            for attempt in before
            if attempt.status is Status.FINISHED
            and attempt.fingerprint == fingerprints.get(attempt.trial)
        }
        if last:
            self.screen.line(f"{len(last)} of {len(composed)} trials have finished before")
        # A trial whose process died may end this one too: it runs after all others, and of several
        # the one that died longest ago runs first.
        deaths = {a.trial: place for place, a in enumerate(before) if a.message.startswith(DIED)}
        unfinished = [attempt for attempt in attempts if attempt.trial not in last]
        unfinished.sort(key=lambda attempt: deaths.get(attempt.trial, -1))
        last |= {attempt.trial: attempt for attempt in execution.run(unfinished)}
        return [last[number] for number in numbers]


def grid(overrides: Sequence[Override]) -> list[Point]:
    """Returns every combination of the swept values; the last key changes fastest.

    Raises:
      ConfigError: for an interval, for a sweep without values or with a repeated value, and for a
        swept key that is set twice.
    """
    swept = [override for override in overrides if override.is_sweep_override()]
    problems = [problem for override in swept for problem in _value_problems(override)]
    counts = Counter(name_of(override) for override in overrides if not override.is_delete())
    problems += [
        Problem(
            f"{name} is set {counts[name]} times",
            "the last one would hold in every trial",
            "give all its values in one override",
        )
        for name in dict.fromkeys(map(name_of, swept))
        if counts[name] > 1
    ]
    if problems:
        raise ConfigError(*problems)
    choices = [
        [
            (f"{override.get_key_element()}={value}", name_of(override), plain(value))
            for value in _values(override)
        ]
        if override.is_sweep_override()
        else [(str(override.input_line), "", "")]
        for override in overrides
    ]
    return [
        Point(
            tuple(override for override, _, _ in combination),
            {name: value for _, name, value in combination if name},
        )
        for combination in itertools.product(*choices)
    ]


def _value_problems(override: Override) -> Iterator[Problem]:
    """Yields what is wrong with the values of a swept override."""
    if override.is_interval_sweep():
        yield Problem(
            f"{override.input_line} is an interval",
            "a grid needs a list of values",
            f"search it, hydra/sweeper=optuna, or list values: {name_of(override)}=1,2",
        )
        return
    values = _values(override)
    if not values:
        yield Problem(
            f"{override.input_line} has no values",
            "a trial needs one",
            "correct its ends, its step or its pattern",
        )
    for value, count in Counter(plain(value) for value in values).items():
        if count > 1:
            yield Problem(
                f"{override.input_line} lists {value!r} {count} times",
                "trials of the same values give the same result",
                "list it once; to repeat a trial, give it several seeds: seed=1,2",
            )


def _values(override: Override) -> list[str]:
    value = override.value()
    if isinstance(value, RangeSweep) and value.step == 0:
        return []  # Hydra raises an error that does not name the override.
    return list(override.sweep_string_iterator())


def _numbers(points: Sequence[Point], attempts: Sequence[Attempt]) -> list[int]:
    """Returns the number of each trial: the one it had before, also with keys in another order."""
    known = {frozenset(attempt.values.items()): attempt.trial for attempt in attempts}
    unused = itertools.count(max(known.values(), default=-1) + 1)
    values = [frozenset(point.values.items()) for point in points]
    return [known[key] if key in known else next(unused) for key in values]
