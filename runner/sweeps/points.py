"""A mapping among the sweeper's settings, as somebody has given it."""

from __future__ import annotations

import itertools
import os
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Quote, QuotedString, RangeSweep
from hydra.core.utils import env_override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, flag_override

from runner.config.cluster import resolve_trial
from runner.config.composition import (
    Compose,
    compose_all,
    experiment_names,
    forced,
    running,
    without_hydra,
)
from runner.config.fingerprint import Identity
from runner.config.hydra_grammar import plain, spelled
from runner.config.schema import RunConfig
from runner.config.validation import validate
from runner.errors import ConfigError, Problem, RunnerError


def given_mapping(name: str, value: Any, example: str) -> dict[str, Any]:
    """Returns `hydra.sweeper.NAME`; an empty mapping where it is not set.

    Args:
      name: of the setting.
      value: it, null included.
      example: a valid one.

    Raises:
      ConfigError: it is no mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(
            Problem(
                f"hydra.sweeper.{name} is {value!r}",
                "it must be a mapping",
                f"for example 'hydra.sweeper.{name}={example}'",
            )
        )
    # In Hydra's grammar a key may be a number.
    return {str(key): each for key, each in value.items()}


_SHOWN = 3
_REMEDY = "mend its ends, its step or its pattern"


@dataclass(frozen=True)
class Point:
    """One trial to be.

    Attributes:
      overrides: all of them, as Hydra composes them.
      values: swept key -> value, as it is and not as the overrides spell it.
    """

    overrides: tuple[str, ...]
    values: Mapping[str, str]

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.values.items()) or "the only one"


@dataclass(frozen=True)
class ComposedPoint:
    """A point that can be run.

    Attributes:
      point: it.
      config: its configuration.
      fingerprint: of the configuration.
    """

    point: Point
    config: RunConfig
    fingerprint: str


def name_of(override: Override) -> str:
    """Returns what an override is about, such as `train.steps` or `scaffold@scaffolds.cnn`."""
    return override.get_key_element().lstrip("+~")


def params_as_typed(params: Any, overrides: Sequence[Override]) -> list[str]:
    """Returns `hydra.sweeper.params` as overrides, without those that the command line gives.

    Args:
      params: key -> values, as a text in the grammar of the command line or as a list; or None.
        What is in a list is one value, also a list or a text with commas.
      overrides: the command line's.

    Raises:
      ConfigError: they are no mapping, or a list is empty.
    """
    given = {name_of(each) for each in overrides}
    left = {
        key: value
        for key, value in given_mapping("params", params, "{seed: [1,2]}").items()
        if key.lstrip("+~") not in given
    }
    problems = [
        Problem(
            f"hydra.sweeper.params has {key}: []",
            "a list holds values, and a trial needs one",
            f"give it values, such as {key}: [1,2], or delete it",
        )
        for key, value in left.items()
        if isinstance(value, list) and not value
    ]
    if problems:
        raise ConfigError(*problems)
    return [forced(f"{key}={_as_typed(value)}") for key, value in left.items()]


def _as_typed(values: Any) -> str:
    if isinstance(values, list):
        return ",".join(map(_one_value, values))
    return values if isinstance(values, str) else _one_value(values)


def _one_value(value: Any) -> str:
    """Returns a value in the grammar of the command line."""
    return spelled(value, _one_text)


def _one_text(text: str) -> str:
    return text if _is_one_value(text) else QuotedString(text, Quote.single).with_quotes()


def _is_one_value(text: str) -> bool:
    """Whether a text is, as it stands, a value of the command line; what calls a function is."""
    try:
        values = OverridesParser.create().parse_override(f"key={text}").value()
    except HydraException:
        return False
    return bool(text) and not (isinstance(values, ChoiceSweep) and values.simple_form)


def grid(overrides: Sequence[Override]) -> list[Point]:
    """Returns every combination of the swept values, the last key's changing fastest.

    Raises:
      ConfigError: for an interval, which holds no list of values, for what holds no value, and for
        a key with values that is given twice.
    """
    problems = [
        Problem(
            f"{each.input_line} is an interval",
            "a grid needs a list of values",
            f"search it, hydra/sweeper=optuna, or list values: {name_of(each)}=1,2",
        )
        for each in overrides
        if each.is_interval_sweep()
    ]
    problems += [
        Problem(f"{each.input_line} holds no value", "a trial needs one", _REMEDY)
        for each in overrides
        if each.is_sweep_override() and not each.is_interval_sweep() and not _values(each)
    ]
    problems += _given_twice(overrides)
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


def _given_twice(overrides: Sequence[Override]) -> list[Problem]:
    """Returns the keys whose values another override would replace in every trial."""
    found: dict[str, list[Override]] = {}
    for each in overrides:
        if not each.is_delete():
            found.setdefault(name_of(each), []).append(each)
    return [
        Problem(
            f"{name} is given {len(same)} times: {' '.join(str(each.input_line) for each in same)}",
            "the last one would hold in every trial",
            "give all its values in one override",
        )
        for name, same in found.items()
        if len(same) > 1 and any(each.is_sweep_override() for each in same)
    ]


def _values(override: Override) -> list[str]:
    value = override.value()
    if isinstance(value, RangeSweep) and value.step == 0:
        return []  # Hydra raises an error that does not name the override.
    return list(override.sweep_string_iterator())


def compose_points(points: Sequence[Point], compose: Compose) -> list[ComposedPoint]:
    """Composes and validates every point.

    Raises:
      ConfigError: with every problem of every point, each told once.
    """
    composed: list[ComposedPoint] = []
    problems: dict[Problem, list[Point]] = {}
    for point in points:
        try:
            composed.append(_composed(point, compose))
        except RunnerError as error:
            for problem in error.problems:
                found = _of_any_value(problem, point)
                problems.setdefault(found, []).append(point)
    if problems:
        raise ConfigError(
            *(placed(problem, where, len(points)) for problem, where in problems.items())
        )
    return composed


def _composed(point: Point, compose: Compose) -> ComposedPoint:
    config, problems = compose_all(compose, point.overrides)
    if config is None:
        raise ConfigError(*problems)
    try:
        composed = _validated(point, config)
    except RunnerError as error:
        raise ConfigError(*problems, *error.problems) from error
    if problems:
        raise ConfigError(*problems)
    return composed


def _validated(point: Point, config: DictConfig) -> ComposedPoint:
    # As Hydra has it when it runs the trial.
    with running(config), env_override(config.hydra.job.env_set):
        valid = validate(without_hydra(config), experiment_names())
        resolve_trial(valid, os.environ)
        return ComposedPoint(point, valid, Identity(valid).fingerprint())


def _of_any_value(problem: Problem, point: Point) -> Problem:
    """Returns a problem whose remedy is the same for all values of a key: `+key=...`."""
    remedy = problem.remedy
    for override in point.overrides:
        key, _, value = override.partition("=")
        key = key.lstrip("+~")
        if key in point.values and re.search(
            rf"(^|[ +]){re.escape(key)}={re.escape(value)}$", remedy
        ):
            remedy = f"{remedy.removesuffix(value)}..."
    return replace(problem, remedy=remedy, choices=tuple(problem.choices))


def placed(problem: Problem, where: Sequence[Point], count: int) -> Problem:
    """Says in which of the trials a problem is, unless it is in all of them."""
    if len(where) == count:
        return problem
    shown = "; ".join(str(point) for point in where[:_SHOWN])
    more = f"; and {len(where) - _SHOWN} more" if len(where) > _SHOWN else ""
    place = f"in {len(where)} of {count} trials: {shown}{more}"
    return replace(problem, cause=f"{problem.cause} ({place})" if problem.cause else place)


# Configurations kept from their check to their trial; more of them cost more memory than time.
_KEPT = 64


class ComposedOnce:
    """A config loader that keeps what the checks composed, for launchers of the same process.

    Composing takes about as long as all else that the runner adds to a short trial.

    Args:
      loader: what composes, and what serves all other purposes of a config loader.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader
        self._kept: OrderedDict[tuple[str, ...], DictConfig] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def compose(self, master: DictConfig, overrides: Sequence[str]) -> DictConfig:
        """Composes the configuration of a trial, which its launcher may ask for once."""
        config = self._loader.load_sweep_config(master, list(overrides))
        # What a trial overrides of `hydra` itself is left to Hydra.
        if config.hydra.overrides.hydra == master.hydra.overrides.hydra:
            self._kept[tuple(overrides)] = config
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return config

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: Sequence[str]
    ) -> DictConfig:
        """Returns the configuration of a trial in the sweep's directory."""
        config = self._kept.pop(tuple(sweep_overrides), None)
        if config is None:
            return self._loader.load_sweep_config(master_config, list(sweep_overrides))
        hydra = config.hydra
        OmegaConf.set_readonly(hydra, False)
        with flag_override(hydra, "struct", False):
            hydra.sweep.dir = master_config.hydra.sweep.dir
            hydra.overrides.hydra = master_config.hydra.overrides.hydra
        OmegaConf.copy_cache(from_config=master_config, to_config=config)
        return config
