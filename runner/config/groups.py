"""The groups of options in the configuration files, and the problem of an option out of place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from runner.config.command import config_folders
from runner.errors import Problem, ranked

# Group -> the keys that its options are values of; NAME is the user's to choose.
_PLACES = {
    "hook": "hooks.NAME",
    "scaffold": "scaffolds.NAME",
    "schedule": "optimizer.learning_rate",
}
# Groups of the key of their name; of these, every configuration has an option already.
_CHOSEN = ("cluster", "optimizer", "tracking", "hydra/launcher", "hydra/sweeper")
_KEYS = (*_CHOSEN, "data", "model")
# The options of these set keys of several parts.
_GLOBAL = ("experiment", "study", "task")
GROUPS = (*_KEYS, *_PLACES, *_GLOBAL)

SOME_OPTION = "OPTION"
"""In place of an option whose name is not known."""


def shipped(folder: str) -> Path:
    """Returns a shipped folder: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / folder
    return inside if inside.is_dir() else package.parent / folder


def group_of(key: str) -> str | None:
    """Returns the group whose options are values of a dotted key, or that is written as a key."""
    for group in GROUPS:
        place = _PLACES.get(group, group.replace("/", ".")).removesuffix(".NAME")
        if key in (place, group.removeprefix("hydra/")):
            return group
        if group in _PLACES and key.rpartition(".")[0] == place:
            return group
    return None


def misplaced(key: str, option: object, file: str | None = None) -> Problem:
    """Returns the problem of an option that is written as the value of a key.

    Args:
      key: the dotted key, of which `group_of` knows the group.
      option: the value; None if it is not known.
      file: the file that holds it, such as `experiment/mine`; empty for an override, None where
        that is not known.
    """
    group = str(group_of(key))
    known = options_of(group)
    if option is None and file:
        option = value_in(file, key)
    name = SOME_OPTION if option is None else str(option)
    place = _PLACES.get(group, "")
    if place.endswith(".NAME"):
        entry = key.removeprefix(place.removesuffix("NAME"))
        place = place.replace("NAME", name if entry == key else entry)
    in_file, in_command = choosing_lines(group, name, place)
    if "." in name and name not in known:
        remedy = f"name a class or function by {key}: {{_target_: {name}}}"
        return Problem(f"{key} is {name!r}", "it must be a mapping", remedy)
    if file:
        remedy = f"write into the `defaults` of {file}.yaml: {in_file}"
    else:
        remedy = f"choose it by {in_command}"
        remedy += f", or in the `defaults` of a file by {in_file}" if file is None else ""
    choices = () if name in known else ranked(name, known)
    state = f"{key} is {name!r}" if option is not None else f"{key} is a group, and not a key"
    return Problem(state, f"an option of the group {group} is not a value", remedy, choices)


def choosing_lines(group: str, option: str, place: str = "") -> tuple[str, str]:
    """Returns how `defaults` and how the command line choose an option."""
    if group == "experiment":
        return f"- {option}", f"+experiment={option}"
    if group in _CHOSEN:
        return f"- override /{group}: {option}", f"{group}={option}"
    at = f"{group}@{place}" if place else group
    return f"- /{at}: {option}", f"+{at}={option}"


def key_of_option(group: str, option: str) -> str:
    """Returns the key that an option of a group is put at; empty for the key of its name."""
    return _PLACES.get(group, "").replace("NAME", option)


def to_add(key: str) -> str:
    """Returns the override that adds an option as a key, such as `hooks.stop`; empty for others."""
    group = group_of(key)
    entry = group is not None and _PLACES.get(group, "").endswith(".NAME")
    return choosing_lines(str(group), SOME_OPTION, key)[1] if entry else ""


def value_in(file: str, key: str) -> Any:
    """Returns a key's value in a file, or its content for the key ""; None if it is not read."""
    for folder in _folders():
        with suppress(Exception):  # The message about it is worth more than the value.
            config = OmegaConf.load(folder / f"{file}.yaml")
            value = OmegaConf.select(config, key) if key else config
            return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    return None


def options_of(group: str) -> list[str]:
    """Returns the options of a group in the folders of configuration files."""
    return sorted({file.stem for folder in _folders() for file in (folder / group).glob("*.yaml")})


def _folders() -> Iterator[Path]:
    """Yields the folders of configuration files: the command's, and the shipped one."""
    yield from config_folders()
    yield shipped("conf")
