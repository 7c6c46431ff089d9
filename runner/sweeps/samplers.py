"""A sampler of Optuna's: built from its configuration, and tried before a search begins."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import optuna
from optuna.samplers import BaseSampler, GridSampler, QMCSampler
from optuna.study import StudyDirection

from runner.errors import ConfigError, Problem
from runner.sweeps.objective import Objective
from runner.sweeps.search_space import SearchSpace
from runner.targets import build_target, locate_target

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
