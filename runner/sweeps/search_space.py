"""The search space: distributions of the values of overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, Sweep
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from runner.config.spelling import spelled
from runner.errors import ConfigError, Problem
from runner.sweeps.points import Point, name_of

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution


@dataclass(frozen=True)
class Dimension:
    """One key that is searched.

    Attributes:
      key: the key as in an override, such as `++train.steps`.
      name: the key alone.
      distribution: the values to draw from.
    """

    key: str
    name: str
    distribution: Distribution


@dataclass(frozen=True)
class SearchSpace:
    """The keys that are searched, and the overrides that all trials share.

    Attributes:
      fixed: overrides of every trial.
      dimensions: the keys that are searched.
    """

    fixed: tuple[str, ...]
    dimensions: tuple[Dimension, ...]

    def distributions(self) -> dict[str, BaseDistribution]:
        """Returns name -> distribution."""
        return {dimension.name: dimension.distribution for dimension in self.dimensions}

    def point(self, values: Mapping[str, Any]) -> Point:
        """Returns the point with these values of the dimensions."""
        chosen = {dimension.name: values[dimension.name] for dimension in self.dimensions}
        overrides = [f"{dimension.key}={chosen[dimension.name]}" for dimension in self.dimensions]
        named = {name: as_shown(value) for name, value in chosen.items()}
        return Point((*self.fixed, *overrides), named)

    def samples(self) -> list[Point]:
        """Returns points among which every choice and every end of a range occurs."""
        samples: dict[str, Sequence[object]] = {}
        for dimension in self.dimensions:
            match dimension.distribution:
                case CategoricalDistribution(choices=choices):
                    samples[dimension.name] = choices
                case distribution:
                    samples[dimension.name] = (distribution.low, distribution.high)
        first = {name: values[0] for name, values in samples.items()}
        points = [self.point(first)]
        for name, values in samples.items():
            points += [self.point({**first, name: value}) for value in values[1:]]
        return points


def as_shown(value: object) -> str:
    """Returns a value as tables show it: strings without quotes."""
    return value if isinstance(value, str) else spelled(value)


def search_space(overrides: Sequence[Override]) -> SearchSpace:
    """Returns the space of all overrides.

    `a,b`, `choice(a,b)` and `glob(*)` are choices. `range(1,5)` holds 1 to 4, a float's step
    likewise. `interval(1,5)` is every number between, `int(interval(1,5))` every whole number from
    1 to 5. `tag(log, ...)` searches the logarithm.

    Raises:
      ConfigError: with every range that cannot be searched.
    """
    fixed: list[str] = []
    dimensions: list[Dimension] = []
    problems: list[Problem] = []
    for override in overrides:
        if not override.is_sweep_override():
            fixed.append(str(override.input_line))
            continue
        try:
            distribution = _distribution(override)
        except ValueError as error:
            problems.append(
                Problem(
                    f"{override.input_line} cannot be searched",
                    str(error),
                    "for example tag(log, interval(1e-4, 1e-1)), range(1, 9, 2) or choice(a, b)",
                )
            )
            continue
        dimensions.append(Dimension(override.get_key_element(), name_of(override), distribution))
    if problems:
        raise ConfigError(*problems)
    return SearchSpace(tuple(fixed), tuple(dimensions))


def _distribution(override: Override) -> Distribution:
    value = override.value()
    tags = value.tags if isinstance(value, Sweep) else set()
    unknown = sorted(tags - {"log"})
    if unknown:
        raise ValueError(f"there is no tag {unknown[0]!r}, only log")
    log = "log" in tags
    if isinstance(value, IntervalSweep):
        if value.start is None or value.end is None:
            raise ValueError("it has no two ends")
        if isinstance(value.start, int) and isinstance(value.end, int):
            return IntDistribution(value.start, value.end, log=log)
        return FloatDistribution(float(value.start), float(value.end), log=log)
    if isinstance(value, RangeSweep):
        if value.step == 0:
            raise ValueError("its step is 0")
        return _of_range(list(value.range()), log)
    if log:
        raise ValueError("choices have no logarithm; take an interval")
    return CategoricalDistribution(list(override.sweep_string_iterator()))


def _of_range(values: Sequence[float], log: bool) -> Distribution:
    if not values:
        raise ValueError("it holds no value")
    low, high = min(values), max(values)
    step = abs(values[1] - values[0]) if len(values) > 1 else None
    if all(isinstance(value, int) for value in values):
        return IntDistribution(int(low), int(high), log=log, step=int(step or 1))
    if log:
        raise ValueError("a logarithm and steps of a range exclude each other; take an interval")
    return FloatDistribution(low, high, step=step and round(step, 12))
