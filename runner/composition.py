"""Composes configurations with Hydra and turns its errors into ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config import RunConfig
from runner.errors import ConfigError, Problem, nearest

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)


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
                nearest(name, experiment_names(), count=8),
            )
        )
    config_name = HydraConfig.get().job.config_name
    try:
        return compose(config_name=config_name, overrides=[f"+experiment={name}", *overrides])
    except COMPOSITION_ERRORS as error:
        raise explain(error) from error


def experiment_names() -> list[str]:
    """The experiments on Hydra's search path; empty outside a Hydra application."""
    if not GlobalHydra.instance().is_initialized():
        return []
    return list(GlobalHydra.instance().config_loader().get_group_options("experiment"))


def explain(error: BaseException) -> ConfigError:
    """Puts an error raised while composing into one problem with the valid choices."""
    if isinstance(error, MissingConfigException):
        return ConfigError(_missing_config(error))
    text = str(error)
    first = text.splitlines()[0]
    appended = re.match(r"Could not override '(?P<key>[^']+)'. No match in the defaults", text)
    if appended:
        return ConfigError(
            Problem(
                f"{appended['key']} is not chosen by default, so it cannot be overridden",
                remedy=f"put a plus before it: +{appended['key']}=...",
            )
        )
    for cause in _chain(error):
        if isinstance(cause, OmegaConfBaseException) and cause.full_key:
            return ConfigError(_bad_value(cause, first))
    return ConfigError(Problem(first, "\n    ".join(text.splitlines()[1:]).strip()))


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _missing_config(error: MissingConfigException) -> Problem:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    options = list(error.options or ())
    if not group:
        return Problem(str(error).splitlines()[0], remedy="check --config-dir and the defaults")
    return Problem(
        f"{group} {name!r} is not known",
        f"no file {name}.yaml is in the `{group}` folder of a config directory",
        "mend the name, or add your folder by --config-dir",
        nearest(name, options, count=max(3, len(options))),
    )


def _bad_value(cause: OmegaConfBaseException, first: str) -> Problem:
    key = str(cause.full_key)
    parent_key, _, wrong = key.rpartition(".")
    valid = _keys(parent_key)
    if wrong in valid:
        where = first if first.startswith("In '") else ""
        return Problem(f"{key} has a value that does not fit", str(cause).splitlines()[0], where)
    every = [path for path in _paths(OmegaConf.structured(RunConfig)) if path != key]
    close = nearest(key, every)
    return Problem(
        f"{key} is not a key of the configuration",
        first if first.startswith("In '") else "it is misspelt, or belongs elsewhere",
        choices=(*close, *(path for path in valid if path not in close)),
    )


def _keys(parent_key: str) -> list[str]:
    schema: Any = OmegaConf.structured(RunConfig)
    parent = OmegaConf.select(schema, parent_key) if parent_key else schema
    return [str(each) for each in parent] if OmegaConf.is_dict(parent) else []


def _paths(node: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in map(str, node):
        path = f"{prefix}{key}"
        yield path
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            yield from _paths(node[key], f"{path}.")
