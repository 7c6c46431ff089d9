"""Turns overrides in Hydra's grammar into the distributions of a search."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import optuna
from hydra.core.override_parser.types import (
    IntervalSweep,
    Override,
    RangeSweep,
    Sweep,
)
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, GridSampler, QMCSampler
from optuna.study import StudyDirection

from runner.config.composition import forced
from runner.config.hydra_grammar import spelled
from runner.config.instantiation import build_target, locate_target
from runner.errors import ConfigError, Problem
from runner.sweeps.points import Point, name_of
from runner.sweeps.summary import Objective

TAGS = ("log",)


@dataclass(frozen=True)
class Dimension:
    """One key that is searched.

    Attributes:
      key: as it stands before the equals sign, such as `++train.steps`.
      name: the key alone.
      distribution: what its values are drawn from.
    """

    key: str
    name: str
    distribution: BaseDistribution

    def override(self, value: object) -> str:
        """Returns the override that gives the key a value."""
        return f"{self.key}={value}"

    def samples(self) -> list[object]:
        """Returns the values whose validity is that of all: every choice, or both ends."""
        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            return list(distribution.choices)
        if isinstance(distribution, IntDistribution | FloatDistribution):
            return [distribution.low, distribution.high]
        raise TypeError(f"no such distribution: {distribution}")


@dataclass(frozen=True)
class SearchSpace:
    """What is searched, and what is the same in every trial.

    Attributes:
      fixed: overrides of every trial.
      dimensions: the keys that are searched.
    """

    fixed: tuple[str, ...]
    dimensions: tuple[Dimension, ...]

    def distributions(self) -> dict[str, BaseDistribution]:
        """Returns name -> distribution."""
        return {each.name: each.distribution for each in self.dimensions}

    def point(self, values: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> Point:
        """Returns the trial with some values of the dimensions, and of further keys."""
        chosen = {each.name: values[each.name] for each in self.dimensions}
        others = {**{k: v for k, v in values.items() if k not in chosen}, **(more or {})}
        overrides = [each.override(chosen[each.name]) for each in self.dimensions]
        # Hydra knows none of the keys that are a scaffold's; of the command line, they are marked.
        overrides += [forced(f"{key}={as_override(value)}") for key, value in others.items()]
        named = {name: as_shown(value) for name, value in {**chosen, **others}.items()}
        return Point((*self.fixed, *overrides), {k.lstrip("+~"): v for k, v in named.items()})

    def samples(self) -> list[Point]:
        """Returns points among which every choice and every end of a range occurs."""
        samples = {each.name: each.samples() for each in self.dimensions}
        first = {name: values[0] for name, values in samples.items()}
        points = [self.point(first)]
        for name, values in samples.items():
            points += [self.point({**first, name: value}) for value in values[1:]]
        return points


def as_override(value: object) -> str:
    """Returns a value in the grammar of Hydra's overrides, in which it is one value of its type."""
    return spelled(value)


def as_shown(value: object) -> str:
    """Returns a value as a table has it: a text as it is."""
    return value if isinstance(value, str) else as_override(value)


def search_space(overrides: Sequence[Override]) -> SearchSpace:
    """Returns the space of the command line's overrides and of `hydra.sweeper.params`.

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


def _distribution(override: Override) -> BaseDistribution:
    value = override.value()
    tags = value.tags if isinstance(value, Sweep) else set()
    unknown = sorted(tags - set(TAGS))
    if unknown:
        raise ValueError(f"there is no tag {unknown[0]!r}, only {', '.join(TAGS)}")
    log = "log" in tags
    if isinstance(value, IntervalSweep):
        if value.start is None or value.end is None:
            raise ValueError("it has no two ends")
        if value.start > value.end:
            raise ValueError(f"its end {value.end} is below its start {value.start}")
        if isinstance(value.start, int) and isinstance(value.end, int):
            return IntDistribution(value.start, value.end, log=log)
        return FloatDistribution(float(value.start), float(value.end), log=log)
    if isinstance(value, RangeSweep):
        if value.step == 0:
            raise ValueError("its step is 0")
        return _of_range(list(value.range()), log)
    if log:
        raise ValueError("choices have no logarithm; take an interval")
    choices = list(override.sweep_string_iterator())
    return CategoricalDistribution(choices)


def _of_range(values: Sequence[float], log: bool) -> BaseDistribution:
    if not values:
        raise ValueError("it holds no value")
    low, high = min(values), max(values)
    if all(isinstance(each, int) for each in values):
        whole = abs(int(values[1] - values[0])) if len(values) > 1 else 1
        return IntDistribution(int(low), int(high), log=log, step=whole)
    if log:
        raise ValueError("a logarithm and steps of a range exclude each other; take an interval")
    step = round(abs(values[1] - values[0]), 12) if len(values) > 1 else None
    return FloatDistribution(low, high, step=step)


KEY = "hydra.sweeper.sampler"

DRAWING_ERRORS = (ValueError, TypeError, RuntimeError, ImportError)
"""What samplers raise where a space, or what is installed, does not suit them."""


def sampler(sweeper: Mapping[str, Any], drawn: int = 0) -> BaseSampler:
    """Builds the sampler.

    With a seed, one that is built anew would draw the study's first trials again. So it is given
    another seed, unless it keeps its place in the study itself.

    Args:
      sweeper: the sweeper's configuration.
      drawn: how many trials the study has already.

    Raises:
      ConfigError: it cannot be built, or a module that it imports when it draws is not installed.
    """
    node = sweeper["sampler"]
    target, seed = locate_target(KEY, node), node.get("seed")
    keeps_place = isinstance(target, type) and issubclass(target, GridSampler | QMCSampler)
    if drawn and seed is not None and not keeps_place:
        node = {**node, "seed": seed + drawn}
    built: BaseSampler = build_target(KEY, node)
    missing = _missing_modules(type(built))
    if missing:
        raise ConfigError(
            Problem(
                f"{KEY} is {node['_target_']}",
                f"it needs {', '.join(missing)}, which is not installed",
                f"pip install {' '.join(missing)}, or take another sampler",
            )
        )
    return built


def _missing_modules(found: type) -> list[str]:
    """Returns the packages that a class imports only when it uses them, and that are not there.

    Optuna stands for such a module by an object of its name, which imports it at its first use.
    """
    modules = [sys.modules[each.__module__] for each in found.__mro__]
    named = [
        value.__name__.partition(".")[0]
        for module in modules
        for value in vars(module).values()
        if isinstance(value, ModuleType)
    ]
    return [
        name
        for name in dict.fromkeys(named)
        if name not in sys.modules and importlib.util.find_spec(name) is None
    ]


def try_sampler(
    sweeper: Mapping[str, Any],
    space: SearchSpace,
    custom: Callable[[optuna.Trial], object] | None,
    objectives: Sequence[Objective],
) -> None:
    """Has the sampler draw twice, in a study that nobody keeps: the second time it knows a trial.

    Raises:
      ConfigError: it cannot draw from the space, or not for as many objectives; or the custom space
        has made a mistake.
    """
    directions = [StudyDirection[each.goal.value.upper()] for each in objectives]
    study = optuna.create_study(sampler=sampler(sweeper), directions=directions)
    stopped: list[bool] = []
    study.stop = lambda: stopped.append(True)  # type: ignore[method-assign]
    while len(study.trials) < 2 and not stopped:
        try:
            trial = study.ask(space.distributions())
        except DRAWING_ERRORS as error:
            raise ConfigError(
                Problem(
                    f"{KEY} is {sweeper['sampler']['_target_']}, which draws no trial",
                    f"{type(error).__name__}: {error}",
                    "mend its arguments or the space, or take another sampler",
                )
            ) from error
        if custom is not None:
            custom(trial)
        study.tell(trial, [0.5] * len(objectives))
