"""The groups of options in the configuration files, and the problems of an option out of place.

Hydra's own messages about `defaults` propose lines that fail when followed; these name the line
that works.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

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
_GROUPS = (*_KEYS, *_PLACES, *_GLOBAL)

_UNUSED = re.compile(r"(?:In '([^']+)': )?Could not override '([^']+)'\. No match in the defaults")
_PROPOSED = re.compile(r"use \+\S+?=(.*)")
_TWICE = re.compile(r"Multiple values for (\S+)\. To override a value use 'override \S+: (.+)'")
_AGAIN = re.compile(r"(\S+) appears more than once in the final defaults list")
_NEAREST = re.compile(
    r"Could not override '([^']+)'\.\s+Did you mean to override (\S+)\?.*=(.*)", re.S
)
_SEVERAL = re.compile(r"(Ambiguous value for argument|Sweep parameters) '(.+?)'(?:$|\n| requires)")
_UNDELETED = re.compile(r"Could not delete '([^']+)'\. No match in the defaults list")
_NO_OPTION = "Config group override must be a string or a list."
# An option whose name is not known.
_SOME = "OPTION"


def shipped(folder: str) -> Path:
    """Returns a shipped folder: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / folder
    return inside if inside.is_dir() else package.parent / folder


def group_of(key: str) -> str | None:
    """Returns the group whose options are values of a dotted key, or that is written as a key."""
    for group in _GROUPS:
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
    known = _options(group)
    if option is None and file:
        option = value_in(file, key)
    name = _SOME if option is None else str(option)
    place = _PLACES.get(group, "")
    if place.endswith(".NAME"):
        entry = key.removeprefix(place.removesuffix("NAME"))
        place = place.replace("NAME", name if entry == key else entry)
    in_file, in_command = _lines(group, name, place)
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


def _lines(group: str, option: str, place: str = "") -> tuple[str, str]:
    """Returns how `defaults` and how the command line choose an option."""
    if group == "experiment":
        return f"- {option}", f"+experiment={option}"
    if group in _CHOSEN:
        return f"- override /{group}: {option}", f"{group}={option}"
    at = f"{group}@{place}" if place else group
    return f"- /{at}: {option}", f"+{at}={option}"


def hydra_problem(text: str, overrides: Sequence[str]) -> Problem | None:
    """Returns the problem of a message of Hydra's about options and values; None for any other.

    `overrides` are those of the composition: some messages do not name the one that is wrong.
    """
    if several := _SEVERAL.match(text):
        return _several_values(several[2], is_list=several[1].startswith("Ambiguous"))
    if undeleted := _UNDELETED.match(text):
        cause = "the experiment writes it as keys, and chooses no option of the group"
        return Problem(
            f"~{undeleted[1]} deletes nothing", cause, f"delete its keys: ~{undeleted[1]}.KEY"
        )
    if text.startswith(_NO_OPTION):
        return _no_option(overrides)
    if unused := _UNUSED.match(text):
        return _nothing_to_override(text, *unused.groups())
    if again := _TWICE.match(text) or _AGAIN.match(text):
        group = again[1]
        option = again[2] if again.re is _TWICE else _chosen(group, overrides)
        remedy = (
            f"on the command line {group}={option}, without a plus; in the `defaults` of a file"
            f" - override /{group}: {option}"
        )
        if group == "experiment":
            remedy = (
                "name one on the command line; a file that builds on another lists it in its"
                " `defaults` without the group: - NAME"
            )
        cause = "a second choice has to replace the first"
        return Problem(f"{group} is chosen twice", cause, remedy)
    if nearest := _NEAREST.match(text):
        key, place, option = nearest.groups()
        state = f"there is no {key} to override"
        return Problem(state, f"an option of {place} is chosen", f"override it: {place}={option}")
    return None


def _several_values(override: str, *, is_list: bool) -> Problem:
    key, _, value = override.partition("=")
    remedy = "with -m, each is a trial of a sweep"
    if is_list:
        remedy += f"; a list is '{key}=[{value}]', a string '{key}=\"{value}\"'"
    return Problem(f"{override} gives several values", "a run takes one", remedy)


def _no_option(overrides: Sequence[str]) -> Problem | None:
    """Returns the problem of an override such as `data=null`."""
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key in _GROUPS and value not in (known := _options(key)):
            remedy = "name an option, or leave it out"
            return Problem(
                f"{key} is {value}", "a group takes the name of an option", remedy, tuple(known)
            )
    return None


def _nothing_to_override(text: str, file: str | None, key: str) -> Problem | None:
    path, _, place = key.partition("@")
    group = _at_root(path, file or "")
    if file is None:
        proposed = _PROPOSED.search(text)
        option = proposed[1] if proposed else _SOME
        default = _PLACES.get(group, "").replace("NAME", option)
        line = _lines(group, option, place or default)[1]
        cause, remedy = "nothing has chosen an option of it", f"choose one by {line}"
    else:
        option = _listed(file, group)
        place = "" if place == group.replace("/", ".") else place
        line = _lines(group, option, place or _PLACES.get(group, "").replace("NAME", option))[0]
        cause = "nothing has chosen an option of it before"
        if group != path:
            cause = "without a slash, a group is looked for in the folder of the file"
        remedy = f"write into the `defaults` of {file}.yaml: {line}"
    known = _options(group)
    choices = () if option in known else ranked(option, known)
    return Problem(f"there is no {key} to override", cause, remedy, choices)


def not_found(group: str, option: str, file: str) -> Problem | None:
    """Returns the problem of a group that a file's `defaults` lists without a slash; or None."""
    known = _at_root(group, file)
    if known == group or known not in _GROUPS:
        return None
    line = _lines(known, option, _PLACES.get(known, "").replace("NAME", option))[0]
    return Problem(
        f"{group} {option!r} is not known",
        "without a slash, a group is looked for in the folder of the file",
        f"write into the `defaults` of {file}.yaml: {line}",
    )


def _at_root(path: str, file: str) -> str:
    """Returns a group without the folder of the file that lists it without a slash."""
    folder = file.rpartition("/")[0]
    return path.removeprefix(f"{folder}/") if folder else path


def _chosen(group: str, overrides: Sequence[str]) -> str:
    """Returns the option that overrides, or the experiment that they name, choose of a group."""
    typed = dict(override.lstrip("+").split("=", 1) for override in overrides if "=" in override)
    return typed.get(group) or _listed(f"experiment/{typed.get('experiment', '')}", group)


def to_add(key: str) -> str:
    """Returns the override that adds an option as a key, such as `hooks.stop`; empty for others."""
    group = group_of(key)
    entry = group is not None and _PLACES.get(group, "").endswith(".NAME")
    return _lines(str(group), _SOME, key)[1] if entry else ""


def _listed(file: str, group: str) -> str:
    """Returns the option of a group in the `defaults` of a file."""
    for entry in value_in(file, "defaults") or ():
        for key, option in entry.items() if isinstance(entry, dict) else ():
            if re.sub(r"^override |@.*|/(?=.)", "", str(key)).strip() == group.replace("/", ""):
                return str(option)
    return _SOME


def value_in(file: str, key: str) -> Any:
    """Returns the value of a key in a configuration file; None if it cannot be read."""
    for folder in _folders():
        with suppress(Exception):  # The message about it is worth more than the value.
            config = OmegaConf.load(folder / f"{file}.yaml")
            value = OmegaConf.select(config, key)
            return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    return None


def _options(group: str) -> list[str]:
    return sorted({file.stem for folder in _folders() for file in (folder / group).glob("*.yaml")})


def _folders() -> Iterator[Path]:
    """Yields the folders of configuration files: the command's, and the shipped one."""
    arguments = [part for argument in sys.argv for part in argument.split("=", 1)]
    for option, folder in pairwise(arguments):
        if option in ("--config-dir", "-cd"):
            yield Path(folder)
    yield shipped("conf")
