"""Composes the configurations of further experiments beside the one that Hydra is running."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import yaml
from hydra import compose
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from runner.config.hydra_errors import explain
from runner.errors import ConfigError, Problem, ranked

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)

_FREE = re.compile(
    r"(scaffolds\.(?!\d)[^.=]+\.[^=]*|restoration\.expect(\.[^=]+)?"
    r"|hydra\.sweeper\.(params|objectives|constraints)(\.[^=]+)?)="
)


def compose_experiment(name: str, overrides: Sequence[str]) -> DictConfig:
    """Composes `+experiment=name` beside the configuration that Hydra is running.

    Raises:
      ConfigError: when there is no such experiment, or it does not compose.
    """
    if name not in experiment_names():
        raise ConfigError(
            Problem(
                f"experiment {name!r} is not known",
                "no file of that name is in the `experiment` folder of a config directory",
                "mend the name, or add your folder by --config-dir",
                ranked(name, experiment_names()),
            )
        )
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
    """The experiments on Hydra's search path; empty outside a Hydra application."""
    if not GlobalHydra.instance().is_initialized():
        return []
    return list(_experiments(GlobalHydra.instance().config_loader()))


@lru_cache(maxsize=1)
def _experiments(loader: ConfigLoader) -> tuple[str, ...]:
    return tuple(loader.get_group_options("experiment"))
