"""Finds all overrides that do not compose, where Hydra tells of the first one alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig

from runner.config import lookup
from runner.config.composition import COMPOSITION_ERRORS, running, without_hydra
from runner.config.hydra_errors import explain
from runner.config.validation import validate
from runner.errors import Problem, RunnerError

# Composes a configuration, `hydra` included, of overrides.
Compose = Callable[[Sequence[str]], DictConfig]

_ERRORS = (*COMPOSITION_ERRORS, ValueError)
# Which keys are below these depends on the chosen groups and the experiment.
_CHOSEN = ("data", "model", "loss", "metrics", "optimizer", "hooks", "scaffolds", "hydra")


def compose_all(
    compose: Compose, overrides: Sequence[str]
) -> tuple[DictConfig | None, list[Problem]]:
    """Composes overrides, leaving out those that do not compose.

    Returns:
      The configuration, and what is wrong with what was left out. No configuration where so much
      may depend on that, a group for example, that the rest says nothing.
    """
    unreadable = _unreadable(overrides)
    if unreadable:
        return None, unreadable
    problems: dict[str, Problem] = {}
    independent = True
    left, outcome = list(overrides), _outcome(compose, overrides)
    while not isinstance(outcome, DictConfig):
        culprit = next(_culprits(compose, left, outcome), None)
        if independent or (culprit is not None and _is_wrong_anyway(culprit[0], outcome)):
            for each in explain(outcome).problems:
                problems.setdefault(each.state, each)
        if culprit is None:
            return None, list(problems.values())
        independent = independent and not _decides_others(culprit[0])
        _, left, outcome = culprit
    return outcome if independent else None, list(problems.values())


def problems_of_command(
    loader: ConfigLoader,
    config_name: str | None,
    overrides: Sequence[str],
    run_mode: RunMode,
    error: Exception,
) -> list[Problem]:
    """Returns all that is wrong with a command that does not compose.

    Args:
      loader: Hydra's.
      config_name: the primary config's.
      overrides: the command line's.
      run_mode: whether it is a sweep; of swept values, the first are looked at.
      error: what composing them raised.
    """
    problems = {each.state: each for each in explain(error).problems}
    lines = list(overrides)
    if run_mode is RunMode.MULTIRUN and not _unreadable(overrides):
        lines = list(_first_values(loader, overrides))
    config, found = compose_all(
        lambda given: loader.load_configuration(config_name, list(given), RunMode.RUN), lines
    )
    for each in found:
        problems.setdefault(each.state, each)
    if config is not None:
        try:
            with running(config):
                validate(without_hydra(config), loader.get_group_options("experiment"))
        except RunnerError as invalid:
            for each in invalid.problems:
                problems.setdefault(each.state, each)
    return list(problems.values())


def _unreadable(overrides: Sequence[str]) -> list[Problem]:
    problems: list[Problem] = []
    parser = OverridesParser.create()
    for each in overrides:
        try:
            parser.parse_overrides([each])
        except OverrideParseException as error:
            problems += explain(error).problems
    return problems


def _outcome(compose: Compose, overrides: Sequence[str]) -> DictConfig | Exception:
    try:
        return compose(overrides)
    except _ERRORS as error:
        return error


def _culprits(
    compose: Compose, overrides: Sequence[str], error: Exception
) -> Iterator[tuple[Override, list[str], DictConfig | Exception]]:
    """Yields overrides without which the error is another or none, the rest, and what it gives."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    named = [each for each in parsed if _is_named(each, error)]
    for each in sorted(named, key=lambda each: len(each.key_or_group), reverse=True):
        rest = [line for line in overrides if line != each.input_line]
        outcome = _outcome(compose, rest)
        if isinstance(outcome, DictConfig) or str(outcome) != str(error):
            yield each, rest, outcome


def _is_named(override: Override, error: Exception) -> bool:
    if isinstance(error, MissingConfigException):
        return error.missing_cfg_file == f"{override.key_or_group}/{override.value()}"
    return override.key_or_group in str(error)


def _decides_others(override: Override) -> bool:
    """Whether an override chooses, or may be meant to choose, a group or the experiment."""
    kind = lookup.annotation(override.key_or_group)
    if isinstance(kind, type) and issubclass(kind, int | float | str | Enum):
        return False  # Such as `seed`.
    of_root = "." not in override.key_or_group or "/" in override.key_or_group
    return of_root and not isinstance(override.value(), bool | int | float | None)


def _is_wrong_anyway(override: Override, error: Exception) -> bool:
    """Whether an override would be wrong whatever groups were chosen."""
    if isinstance(error, MissingConfigException):
        return True
    root, dot, _ = override.key_or_group.partition(".")
    return bool(dot) and root not in _CHOSEN


def _first_values(loader: ConfigLoader, overrides: Sequence[str]) -> Iterator[str]:
    """Yields the overrides of one trial of a sweep."""
    for each in OverridesParser.create(config_loader=loader).parse_overrides(list(overrides)):
        if not each.is_sweep_override():
            yield str(each.input_line)
            continue
        values = (
            iter([str(each.value().start)])  # type: ignore[union-attr]
            if each.is_interval_sweep()
            else each.sweep_string_iterator()
        )
        for value in values:
            yield f"{each.get_key_element()}={value}"
            break
