"""Composes configurations through Hydra, and finds every override that does not compose.

Hydra composes the command's own configuration. This module composes beside it: the experiments that
checkpoints come from, the trials of a sweep, and a command that Hydra has refused, once more, for
all of its mistakes.
"""

from __future__ import annotations

import argparse
import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import (
    HydraException,
    MissingConfigException,
    OverrideParseException,
    SearchPathException,
)
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from runner.config.hydra_errors import explain, without_experiment
from runner.config.instantiation import register_resolvers
from runner.config.keys import annotation
from runner.config.reference import help_of_keys
from runner.config.schema import RunConfig
from runner.config.spelling import spelled
from runner.config.validation import is_by_folder, validate
from runner.errors import Problem, RunnerError

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError)
# A composition, like a run, can also raise these: OmegaConf itself fails at an override below a key
# without a value, and a folder of configs may not be readable.
RAISED = (*COMPOSITION_ERRORS, ValueError, AttributeError, AssertionError, PermissionError)

# Composes a configuration, `hydra` included, of overrides.
Compose = Callable[[Sequence[str]], DictConfig]

_FREE = re.compile(
    r"(scaffolds\.(?!\d)[^.=]+\.[^=]*|restoration\.expect(\.[^=]+)?"
    r"|hydra\.sweeper\.(params|objectives|constraints)(\.[^=]+)?)="
)
# What an experiment sets, and nothing else.
_OF_EXPERIMENT = ("data", "model", "loss", "metrics", "hooks", "params", "input_fns", "graph")
# Which keys are below these depends on the chosen groups and the experiment.
_CHOSEN = (*_OF_EXPERIMENT, "model_fn", "optimizer", "scaffolds", "hydra")


def compose_experiment(name: str, overrides: Sequence[str]) -> DictConfig:
    """Composes `+experiment=name` beside the configuration that Hydra is running.

    Raises:
      ConfigError: when there is no such experiment, or it does not compose.
    """
    loader = GlobalHydra.instance().config_loader()
    try:
        composed = _composed(loader, HydraConfig.get().job.config_name, name, tuple(overrides))
    except COMPOSITION_ERRORS as error:
        raise explain(error) from error
    return copy.deepcopy(composed)


# The trials of a sweep come from the same few experiments.
@lru_cache(maxsize=32)
def _composed(
    loader: ConfigLoader, config_name: str | None, name: str, overrides: tuple[str, ...]
) -> DictConfig:
    """Composes an experiment; by another `loader` it may be another one."""
    return compose(
        config_name=config_name,
        overrides=[f"+experiment={name}", *(forced(each) for each in overrides)],
    )


def forced(override: str) -> str:
    """Puts `++` before an override of a scaffold's key, so that its YAML need not hold the key.

    Likewise of an expectation, whose keys are names of scaffolds, and of mappings of a sweeper.
    Hydra knows only the keys that the YAML holds; ours are checked by `validate` and the sweeper.
    """
    return f"++{override}" if _FREE.match(override) else override


@contextmanager
def running(config: DictConfig) -> Iterator[None]:
    """Makes a configuration the one that Hydra runs, from which sources are composed."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(config)
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def without_hydra(config: DictConfig) -> DictConfig:
    """Returns a copy of a composed configuration, as a run is given it."""
    task = copy.deepcopy(config)
    with read_write(task), open_dict(task):
        del task["hydra"]
    return task


def experiment_names() -> list[str]:
    """Returns the experiments on Hydra's search path; none outside a Hydra application."""
    hydra = GlobalHydra.instance()
    return hydra.config_loader().get_group_options("experiment") if hydra.is_initialized() else []


def compose_all(
    compose: Compose, overrides: Sequence[str]
) -> tuple[DictConfig | None, list[Problem]]:
    """Composes overrides, leaving out those that do not compose.

    Returns:
      The configuration, and what is wrong with the overrides left out. No configuration where they
      may decide the others, such as the choice of a group.
    """
    try:
        return compose(overrides), []
    except RAISED as error:
        first = error
    lacking = _without_experiment(overrides)
    if lacking:
        _, found_beside = compose_all(compose, [each for each in overrides if each not in lacking])
        return None, [*lacking.values(), *found_beside]
    parsed, problems = _parsed(overrides)
    if problems:
        return None, problems
    config, chosen = None, True
    composed: list[str] = []
    found: dict[str, Problem] = {}
    for each in sorted(parsed, key=lambda override: not _is_choice(override)):
        try:
            if len(composed) == len(parsed) - 1:
                raise first  # All others compose.
            config = compose([*composed, str(each.input_line)])
            composed.append(str(each.input_line))
        except RAISED as error:
            root, dot, _ = each.key_or_group.partition(".")
            independent = bool(dot) and root not in _CHOSEN
            if chosen or independent or isinstance(error, MissingConfigException):
                below_nothing = isinstance(error, AttributeError | AssertionError)
                wrong = [without_experiment(each.key_or_group)] if below_nothing else []
                found |= {problem.state: problem for problem in wrong or explain(error).problems}
            chosen = chosen and not _is_choice(each)
    return config if chosen and found else None, list(found.values() or explain(first).problems)


def _parsed(overrides: Sequence[str]) -> tuple[list[Override], list[Problem]]:
    parsed: list[Override] = []
    problems: list[Problem] = []
    for each in overrides:
        try:
            parsed += OverridesParser.create().parse_overrides([each])
        except OverrideParseException as error:
            problems += explain(error).problems
    return parsed, problems


def _is_choice(override: Override) -> bool:
    """Whether an override chooses, or may be meant to choose, a group or the experiment."""
    kind = annotation(override.key_or_group, RunConfig)
    if isinstance(kind, type) and issubclass(kind, int | float | str | Enum):
        return False  # Such as `seed`.
    of_root = "." not in override.key_or_group or "/" in override.key_or_group
    return of_root and not isinstance(override.value(), bool | int | float | None)


def problems_of_command(
    directory: Path, arguments: Sequence[str], error: Exception
) -> list[Problem]:
    """Returns all that is wrong with a command that has failed; none where its run has failed.

    Hydra reports the first mistake alone. The command is composed again by Hydra's public API: if
    it composes, the error is not the command's. Of the values that a sweep lists, the first are
    composed. With a search path of the user's own, or a glob, the first mistake is all there is.
    """
    options = _options(arguments)
    first = explain(error).problems
    overrides: Sequence[str] = options.overrides
    # Such a search path, and what is globbed on it, the composition below does not know.
    unknown = any("hydra.searchpath" in each or "glob(" in each for each in overrides)
    if isinstance(error, SearchPathException) or options.config_path or unknown:
        return list(first) if isinstance(error, COMPOSITION_ERRORS) else []
    folders = [f"file://{Path(options.config_dir).resolve()}"] if options.config_dir else []
    path = f"hydra.searchpath={spelled(folders)}"

    def again(given: Sequence[str]) -> DictConfig:
        return compose(options.config_name, [path, *given], return_hydra_config=True)

    with initialize_config_dir(str(directory), version_base="1.3"):
        if options.multirun and not _parsed(overrides)[1]:
            overrides = list(_first_values(overrides))
        config, found = compose_all(again, overrides)
        if config is not None and found and not is_by_folder(config):
            try:
                with running(config):
                    validate(without_hydra(config), experiment_names())
            except RunnerError as invalid:
                found += invalid.problems
    if not found and not (options.cfg or options.info or options.resolve):
        return []
    if _without_experiment(overrides) or isinstance(error, AttributeError | AssertionError):
        first = ()
    return list({each.state: each for each in (*first, *found)}.values())


def _without_experiment(overrides: Sequence[str]) -> dict[str, Problem]:
    """Returns override -> problem of what only an experiment sets; nothing where one is named."""
    parsed = _parsed(overrides)[0]
    given = {each.key_or_group for each in parsed}
    if given & {"experiment", "name"}:
        return {}
    return {
        str(each.input_line): without_experiment(
            each.key_or_group, by_folder={"mode", "run_dir"} <= given
        )
        for each in parsed
        if "." in each.key_or_group and each.key_or_group.split(".")[0] in _OF_EXPERIMENT
    }


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns what Hydra's own options say, and the overrides."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--config-name", "-cn", default="config")
    for names in (("--config-dir", "-cd"), ("--config-path", "-cp"), ("--cfg", "-c")):
        parser.add_argument(*names)
    parser.add_argument("--package", "-p")
    parser.add_argument("--info", "-i", nargs="?", const="all")
    for flags in (("--multirun", "-m"), ("--resolve",)):
        parser.add_argument(*flags, action="store_true")
    return parser.parse_known_args(arguments)[0]


def _first_values(overrides: Sequence[str]) -> Iterator[str]:
    """Yields the overrides of one trial of a sweep."""
    for each in _parsed(overrides)[0]:
        value = each.value()
        if isinstance(value, IntervalSweep):
            yield f"{each.get_key_element()}={value.start}"
        elif each.is_sweep_override():
            yield f"{each.get_key_element()}={next(each.sweep_string_iterator())}"
        else:
            yield str(each.input_line)


@cache
def register() -> None:
    """Makes the schema known to Hydra as `runner_config`; calling it again changes nothing."""
    register_resolvers()
    OmegaConf.register_new_resolver("runner_help", help_of_keys)
    store = ConfigStore.instance()
    # OmegaConf merges neither a list into a mapping nor the reverse, but either into null.
    store.store(name="runner_config", node=RunConfig(scaffolds=None))
    # Hydra copies its sources, and the store with them, for each composition (a tenth of its time)
    # and each group that --help lists (0.7 s in all). It need not: the store copies what it loads.
    vars(store)["__deepcopy__"] = ConfigStore.instance
