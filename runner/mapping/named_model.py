"""The model that `runner map` is given: a `_target_`, a file of Keras or an experiment."""

from __future__ import annotations

import inspect
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import yaml
from hydra.utils import get_object
from omegaconf import OmegaConf

from runner.config.composition import (
    command_scope,
    compose_command,
    experiment_names,
    search_path,
    without_hydra,
)
from runner.config.instantiation import build_target
from runner.config.validation import validate
from runner.errors import CheckpointError, ConfigError, nearest
from runner.graph.program import as_in_fit, build_model


def model_named(
    name: str, settings: Sequence[str], config_dir: str | None = None
) -> tuple[Any, Mapping[str, Any]]:
    """Returns a model and the checkpoints of its scaffolds, by name.

    Args:
      name: of a function or class, a `.keras` file or an experiment.
      settings: its arguments, or overrides of the experiment, `KEY=VALUE`.
      config_dir: a folder with further experiments.

    Raises:
      ConfigError: when it cannot be built.
    """
    if name.endswith(".keras"):
        try:
            return keras.models.load_model(name, compile=False), {}
        except (OSError, ValueError, TypeError) as error:
            raise _not_loaded(name, error) from error
    if "." in name:
        return _of_target(name, settings), {}
    with command_scope():
        experiments = [*experiment_names(), *_experiments_in(config_dir)]
        if name not in experiments:
            raise ConfigError.of(
                f"there is no experiment {name!r}",
                "a model is a dotted name, a .keras file or an experiment",
                "name one of them; --config-dir names the folder of your own experiments",
                nearest(name, experiments),
            )
        overrides = [*search_path(config_dir), f"+experiment={name}", *settings]
        config = validate(without_hydra(compose_command(overrides)), experiments)
    checkpoints = {key: scaffold.checkpoint for key, scaffold in config.scaffolds.items()}
    with as_in_fit(config):
        return build_model(config), checkpoints


def _experiments_in(config_dir: str | None) -> list[str]:
    if config_dir is None:
        return []
    folder = Path(config_dir, "experiment")
    if not folder.is_dir():
        state, cause = f"--config-dir is {config_dir}", f"there is no folder {folder}"
        raise ConfigError.of(state, cause, "correct the path")
    return sorted(file.stem for file in folder.glob("*.yaml"))


def _not_loaded(name: str, error: Exception) -> CheckpointError:
    """Returns the error of a `.keras` file, which names a class that Keras does not know."""
    state = f"{name} cannot be loaded"
    if not zipfile.is_zipfile(name):
        cause = "a .keras file is a zip archive, and this is none, or not a whole one"
        if not os.path.isfile(name):
            cause = "there is no such file"
        return CheckpointError.of(state, cause, "correct the path, or copy the file again")
    unknown = re.search(r"Could not locate class '([^']+)'", str(error))
    if unknown is None:
        lines = str(error).splitlines() or [type(error).__name__]
        return CheckpointError.of(state, lines[0])
    return CheckpointError.of(
        state,
        f"it has a layer of the class {unknown[1]}, which is not one of Keras's",
        f"name the function that builds the model as MODEL, or decorate {unknown[1]} with "
        "@keras.saving.register_keras_serializable and load it in Python for runner.propose",
    )


def _of_target(name: str, settings: Sequence[str]) -> Any:
    """Builds the model of a `_target_`; of `keras.applications` without downloading weights."""
    node: dict[str, Any] = {"_target_": name}
    try:
        default = inspect.signature(get_object(name)).parameters.get("weights")
        if default is not None and isinstance(default.default, str):
            node["weights"] = None
    except (ImportError, ValueError, TypeError, AttributeError):
        pass  # `build_target` reports what is wrong.
    for setting in settings:
        key, _, value = setting.partition("=")
        try:
            # As Hydra reads overrides: `1e-3` is a number, which YAML's own rules deny.
            parsed: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"{key}={value}"]))
            node |= parsed
        except yaml.YAMLError as error:
            cause = str(error).splitlines()[-1].strip("^ ") or "it is not YAML"
            raise ConfigError.of(f"MODEL.{key} is {value!r}", cause, "quote it") from error
    return build_target("MODEL", node)
