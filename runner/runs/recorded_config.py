"""Reads the configuration of a run that a mode such as `evaluate` names by its folder."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from runner.config.choices import SCAFFOLDS
from runner.config.fingerprint import NOT_IN_FINGERPRINT
from runner.config.keys import flatten, leaves
from runner.config.masking import MASKED
from runner.config.schema import to_compose
from runner.errors import ConfigError, Problem, RunDirectoryError
from runner.runs.run_directory import RunDirectory
from runner.tracking.address import address_of
from runner.tracking.store_kinds import recorded_settings
from runner.tracking.tracking_directory import TrackingDirectory

# Keys of objects that are built to evaluate or export, with their secrets.
_BUILT = ("data", "model", "loss", "metrics")


def recorded_config(command: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Returns the configuration that a run recorded, with the changes of a command.

    A command may change settings that do not decide the result, and sets the secrets, which were
    not recorded. The run is recorded where it was before, unless the command names another store.

    Args:
      command: the composed command, for which `is_from_run_dir` holds.
      overrides: the command's overrides.

    Raises:
      RunDirectoryError: when the folder is no run, or has no configuration.
      ConfigError: when an override would change the result, or a secret is missing.
    """
    directory = RunDirectory(Path(command.run_dir))
    recorded = _recorded(directory)
    values = flatten(OmegaConf.to_container(recorded, resolve=False))  # type: ignore[arg-type]
    masked = {key for key, value in values.items() if MASKED in str(value)}
    keys = list(_keys(overrides))
    problems = [*_refused(directory, keys, masked), *_missing(directory, masked - {*keys})]
    if SCAFFOLDS in (command.evaluate.which, command.predict.which, command.export.which):
        problems.append(
            Problem(
                f"which is {SCAFFOLDS}, and {directory.path} is a run",
                "a run is evaluated or exported with one of its checkpoints",
                "name the experiment instead of the run: +experiment=NAME",
            )
        )
    settings = _tracking(directory)
    if not {"tracking", "tracking.uri"} & {*keys}:
        problems += _gone(directory, settings["tracking.uri"])
    if problems:
        raise ConfigError(*problems)
    merged = OmegaConf.merge(OmegaConf.structured(to_compose()), recorded)
    OmegaConf.set_struct(merged, False)
    for key in NOT_IN_FINGERPRINT:
        if key != "tracking":
            OmegaConf.update(merged, key, command[key], merge=False)
    for key, value in settings.items():
        OmegaConf.update(merged, key, value)
    for key in keys:
        OmegaConf.update(merged, key, OmegaConf.select(command, key), merge=False)
    return merged  # type: ignore[return-value]  # Both that are merged are mappings.


def _keys(overrides: Sequence[str]) -> Iterator[str]:
    """Yields the dotted keys that overrides set, also those within a mapping."""
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        value, key = override.value(), override.key_or_group
        yield from dict(leaves(key, value)) if isinstance(value, dict) and value else (key,)


def _recorded(directory: RunDirectory) -> DictConfig:
    directory.named_record(
        f"run_dir is {directory.path}, which is not a run, and no experiment is named",
        "name a run, as in run_dir=runs/NAME/001, or its experiment: +experiment=NAME",
    )
    try:
        recorded = OmegaConf.load(directory.config)
    except (OSError, YAMLError) as error:
        recorded, cause = None, f"{type(error).__name__}: {error}".splitlines()[0]
    else:
        cause = "it does not name the experiment"
    if not isinstance(recorded, DictConfig) or "name" not in recorded:
        remedy = f"name the experiment with all of its overrides, and run_dir={directory.path}"
        raise RunDirectoryError.of(f"{directory.config} cannot be used", cause, remedy)
    return recorded


def _refused(
    directory: RunDirectory, keys: Sequence[str], masked: Collection[str]
) -> Iterator[Problem]:
    for key in keys:
        if key.partition(".")[0] not in NOT_IN_FINGERPRINT and key not in masked:
            yield Problem(
                f"{key} is given, and {directory.path} has a recorded value",
                "run_dir names the run, whose configuration is not changed",
                "leave it out; or name the experiment, with all of its overrides",
            )


def _missing(directory: RunDirectory, secrets: Collection[str]) -> Iterator[Problem]:
    for key in sorted(secrets):
        if key.partition(".")[0] in _BUILT:
            yield Problem(
                f"{key} is a secret, which {directory.config} does not hold",
                "the run is built with it",
                f"give it again: {_override(key)}",
            )


def _override(key: str) -> str:
    """Returns an override that sets a dotted key of a mapping that the command does not have."""
    # The items of a list are given together.
    root, *rest = re.split(r"\.\d", key)[0].split(".")
    return f"'+{root}={''.join(f'{{{name}: ' for name in rest)}...{'}' * len(rest)}'"


def _gone(directory: RunDirectory, uri: Any) -> Iterator[Problem]:
    database = address_of(uri, Path.cwd()).database if uri else None
    if database is not None and not database.parent.is_dir():
        yield Problem(
            f"{directory.path} is recorded in {database}, whose folder does not exist any more",
            "the run was copied or moved without it",
            "name the store: tracking.uri=sqlite:///mlflow.db; or record nothing: tracking=none",
        )


def _tracking(directory: RunDirectory) -> Mapping[str, Any]:
    """Returns the settings of the run's stores: only its identity has passwords and whole paths."""
    identity = TrackingDirectory(directory.path).identity()
    return recorded_settings(identity.stores if identity else ())
