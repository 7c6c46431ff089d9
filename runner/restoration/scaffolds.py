"""Reads the scaffolds and rules of a warm start outside a run: mappings, or a YAML file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.hydra_errors import unresolved
from runner.config.scaffold_reading import read_restoration, read_scaffolds
from runner.config.schema import RestorationConfig, ScaffoldConfig
from runner.errors import ConfigError, Problem


def read_warm_start(
    scaffolds: Any, restoration: Any = None
) -> tuple[dict[str, ScaffoldConfig], RestorationConfig]:
    """Returns the scaffolds, in order of application, and the rules for all of them.

    Args:
      scaffolds: name -> keys of a scaffold, or a `ScaffoldConfig`; a list of such keys with a
        `name`; or the path of a YAML file that holds one of these, alone or below `scaffolds`.
      restoration: a mapping or a `RestorationConfig`; None for that of the file, if any.

    Raises:
      ConfigError: with everything that is not valid.
    """
    if isinstance(scaffolds, str | Path):
        content = _read(scaffolds)
        if isinstance(content, Mapping) and "scaffolds" in content:
            restoration = content.get("restoration") if restoration is None else restoration
            content = content["scaffolds"]
        scaffolds = content
    found, problems = read_scaffolds(scaffolds)
    rules, wrong = read_restoration(restoration or {})
    problems += [*wrong, *(each for name in found for each in _in_training(name, found[name]))]
    if problems:
        raise ConfigError(*problems)
    return found, rules


def _read(path: str | Path) -> Any:
    where = os.fspath(path)
    try:
        return OmegaConf.to_container(OmegaConf.load(where), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(unresolved(error)) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            Problem(
                f"{where} cannot be read as YAML",
                " ".join(str(error).split()),
                "name a file with `scaffolds:`, a mapping name -> scaffold",
            )
        ) from error


def _in_training(name: str, scaffold: ScaffoldConfig) -> Iterator[Problem]:
    """Yields a problem for each key that only the training step of a run can honour."""
    schedule = {
        "freeze_until_step": scaffold.freeze_until_step != 0,
        "learning_rate_multiplier": scaffold.learning_rate_multiplier != 1.0,
    }
    for key in (key for key, is_set in schedule.items() if is_set):
        yield Problem(
            f"scaffolds.{name}.{key} is {getattr(scaffold, key):g}",
            "a warm start gives values; it is the training step of a run that honours this key",
            "delete it, or train by `python -m runner`",
        )
