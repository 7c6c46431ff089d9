"""The constraints of a search: bounds of metrics, or functions of them."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.config.instantiation import build_target
from runner.errors import ConfigError, Problem, ranked
from runner.sweeps.points import given_mapping

logger = logging.getLogger(__name__)

Constraint = Callable[[Mapping[str, float]], float]

_BOUNDS = ("min", "max")
_TRIED = 0.5


def constraints(
    sweeper: Mapping[str, Any], metrics: Sequence[str] | None = None
) -> dict[str, Constraint]:
    """Returns name -> function of a trial's metrics; at most 0 is feasible.

    Args:
      sweeper: the sweeper's configuration.
      metrics: names that bounds may have, such as `validation/loss`; None does not check them.

    Raises:
      ConfigError: with every mistake: an entry has neither bounds nor a `_target_`, a bound is no
        number, no value is within two of them, there is no such metric or target, or, where
        metrics are given, a function that is tried with values for them cannot do with any. Also
        from a constraint that is a function, when that raises or returns no number.
    """
    example = "{validation/loss: {max: 0.5}}"
    given = given_mapping("constraints", sweeper.get("constraints"), example)
    if "_target_" in given:
        raise ConfigError(
            Problem(
                "hydra.sweeper.constraints has a `_target_` itself",
                "it holds constraints by their names",
                "give it a name, for example"
                f" 'hydra.sweeper.constraints={{mine: {{_target_: {given['_target_']}}}}}'",
            )
        )
    found: dict[str, Constraint] = {}
    problems: list[Problem] = []
    for name, node in given.items():
        key = f"hydra.sweeper.constraints.{name}"
        if isinstance(node, Mapping) and "_target_" in node:
            try:
                found[name] = _function(key, node, metrics)
            except ConfigError as error:
                problems += error.problems
            continue
        problems += _problems(key, name, node, metrics)
        found[name] = _bounds(name.removeprefix("validation/"), node)
    if problems:
        raise ConfigError(*problems)
    return found


def _problems(key: str, name: str, node: Any, metrics: Sequence[str] | None) -> list[Problem]:
    """Returns what is wrong with an entry that has no `_target_`."""
    problems = []
    if metrics is not None and f"validation/{name.removeprefix('validation/')}" not in metrics:
        problems.append(
            Problem(
                f"hydra.sweeper.constraints names {name!r}",
                "no evaluation gives it",
                choices=ranked(name, metrics),
            )
        )
    if not isinstance(node, Mapping) or not node or not set(node) <= set(_BOUNDS):
        problems.append(
            Problem(
                f"{key} is {node!r}",
                "it must give bounds of a metric, or a `_target_`",
                f"for example {{{name}: {{max: 0.5}}}} or {{{name}: {{_target_: my.constraint}}}}",
            )
        )
        return problems
    problems += [
        Problem(f"{key}.{bound} is {value!r}", "it must be a number")
        for bound, value in node.items()
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value)
    ]
    if not problems and node.get("min", -math.inf) > node.get("max", math.inf):
        problems.append(
            Problem(f"{key} is {node!r}", "min is above max, so that no trial meets it")
        )
    return problems


def _bounds(metric: str, node: Mapping[str, float]) -> Constraint:
    def violated(metrics: Mapping[str, float]) -> float:
        value = metrics.get(metric, math.nan)
        beyond = [value - node["max"]] if "max" in node else []
        beyond += [node["min"] - value] if "min" in node else []
        return max(beyond)

    return violated


def _function(key: str, node: Mapping[str, Any], names: Sequence[str] | None) -> Constraint:
    function = build_target(key, {**node, "_partial_": True})
    if names is not None:
        _try(key, node, function, [each.removeprefix("validation/") for each in names])

    def violated(metrics: Mapping[str, float]) -> float:
        try:
            return float(function(metrics))
        except Exception as error:  # It is the user's, and may raise anything.
            raise ConfigError(
                Problem(
                    f"{key}: {node['_target_']} gives no number",
                    f"{type(error).__name__}: {error}",
                    f"mend the function; it is given the metrics {', '.join(sorted(metrics))}",
                )
            ) from error

    return violated


class _Asked(dict[str, float]):
    """Metrics of an evaluation, which note what else they are asked for."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(dict.fromkeys(names, _TRIED))
        self.unknown: list[str] = []

    def __missing__(self, name: str) -> float:
        self.unknown.append(name)
        raise KeyError(name)


def _try(key: str, node: Mapping[str, Any], function: Constraint, names: Sequence[str]) -> None:
    """Calls a function with values that metrics may have, and says what no values can mend.

    Raises:
      ConfigError: it does not take the metrics alone, asks for one that there is not, or returns
        no number.
    """
    named = f"{key}: {node['_target_']}"
    asked = _Asked(names)
    with contextlib.suppress(ValueError):  # Some builtins have no signature.
        try:
            inspect.signature(function).bind(asked)
        except TypeError as error:
            raise ConfigError(
                Problem(
                    f"{named} cannot be called with the metrics alone",
                    str(error),
                    "it takes them as its first argument; give the others in the configuration",
                )
            ) from error
    try:
        value: object = function(asked)
    except Exception as error:  # It is the user's; other values may do.
        if not asked.unknown:
            logger.info("%s was tried: %r", named, error)
            return
        raise ConfigError(
            Problem(
                f"{named} asks for the metric {asked.unknown[0]!r}",
                "no evaluation gives it",
                choices=ranked(str(asked.unknown[0]), names),
            )
        ) from error
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            Problem(
                f"{named} gives no number",
                f"it returns {value!r} where every metric is {_TRIED}",
                "mend the function; at most 0 is where the constraint is met",
            )
        ) from error


def violation(constraint: Constraint, metrics: Mapping[str, float]) -> float:
    """Returns by how much a trial violates a constraint, in the metric's unit.

    Infinitely where nobody can tell: it was never evaluated, or its metric is NaN or missing. A
    study takes no NaN.
    """
    found = constraint(metrics) if metrics else math.nan
    return math.inf if math.isnan(found) else found
