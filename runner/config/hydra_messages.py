"""The problems that Hydra's messages about options and values report.

Hydra's errors hold nothing but a message, and its messages about `defaults` propose lines that fail
when followed; these problems name the line that works. The table of mistakes in
`tests/unit/config/mistakes.txt` has a case of every message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra.errors import MissingConfigException

from runner.config.groups import (
    GROUPS,
    SOME_OPTION,
    choosing_lines,
    key_of_option,
    options_of,
    value_in,
)
from runner.errors import Problem, ranked

_IN_FILE = re.compile(r"In '([^']+)'")


def hydra_problem(text: str, overrides: Sequence[str]) -> Problem | None:
    """Returns the problem of a message of Hydra's about options and values; None for any other.

    `overrides` are what was composed: some messages do not name the override that is wrong.
    """
    for pattern, problem in _MESSAGES:
        if message := pattern.match(text):
            return problem(message, overrides)
    return None


def missing_option(error: MissingConfigException) -> Problem | None:
    """Returns the problem of a file of a group that Hydra did not find; None for any other file."""
    if "/" not in (error.missing_cfg_file or ""):
        return None
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    file = file_in(str(error))
    known = _at_root(group, file)
    if known == group or known not in GROUPS:
        return Problem(
            f"{group} {option!r} is not known",
            str(error).splitlines()[0],
            "fix the name, or add your folder with --config-dir",
            ranked(option, error.options or ()),
        )
    line = choosing_lines(known, option, key_of_option(known, option))[0]
    return Problem(
        f"{group} {option!r} is not known",
        "without a slash, a group is looked for in the folder of the file",
        f"write into the `defaults` of {file}.yaml: {line}",
    )


def file_in(text: str) -> str:
    """Returns the file that a message names, `In 'experiment/mine': ...`; empty without one."""
    named = _IN_FILE.match(text)
    return named[1] if named else ""


def _several_values(message: re.Match[str], overrides: Sequence[str]) -> Problem:
    override, is_list = message[2], message[1].startswith("Ambiguous")
    key, _, value = override.partition("=")
    remedy = "with -m, each is a trial of a sweep"
    if is_list:
        remedy += f"; a list is '{key}=[{value}]', a string '{key}=\"{value}\"'"
    return Problem(f"{override} gives several values", "a run takes one", remedy)


def _nothing_to_delete(message: re.Match[str], overrides: Sequence[str]) -> Problem:
    return Problem(
        f"~{message[1]} deletes nothing",
        "the experiment writes it as keys, and chooses no option of the group",
        f"delete its keys: ~{message[1]}.KEY",
    )


def _no_key_to_delete(message: re.Match[str], overrides: Sequence[str]) -> Problem:
    state, cause = f"~{message[1]} deletes nothing", "the configuration has no such key"
    return Problem(state, cause, "fix the name, or leave it out")


def _other_value_to_delete(message: re.Match[str], overrides: Sequence[str]) -> Problem:
    key, value, typed = message.groups()
    remedy = f"~{key} deletes it whatever its value is"
    return Problem(f"~{key}={typed} deletes nothing", f"{key} is {value}", remedy)


def _no_option(message: re.Match[str], overrides: Sequence[str]) -> Problem | None:
    """Returns the problem of an override such as `data=null` or `optimizer=[{a: 1}]`."""
    for key, value in _typed(overrides).items():
        group = key.partition("@")[0]
        if group in GROUPS and value not in (known := options_of(group)):
            cause, remedy = "a group takes the name of an option", "name an option, or leave it out"
            return Problem(f"{key} is {value}", cause, remedy, tuple(known))
        if group in ("", "hydra"):
            remedy = "write KEY=VALUE; of Hydra's own keys, see --hydra-help"
            return Problem(f"{key}={value} sets nothing", "it names no key", remedy)
    return None


def _set_already(message: re.Match[str], overrides: Sequence[str]) -> Problem:
    remedy = f"leave out the plus: {message[1]}=..."
    return Problem(f"+{message[1]} adds nothing", "the key has a value already", remedy)


def _no_folder(message: re.Match[str], overrides: Sequence[str]) -> Problem:
    path = Path(message[1])
    cause = "it is a file" if path.exists() else "it is not there"
    remedy = "name the folder that holds the folders experiment, data and so on"
    folders = (str(folder) for folder in path.parent.glob("*/") if (folder / "experiment").is_dir())
    return Problem(f"--config-dir is {path}", cause, remedy, tuple(sorted(folders)))


def _no_defaults(message: re.Match[str], overrides: Sequence[str]) -> Problem:
    file = f"{message[1]}.yaml" if message[1] else "a file of the configuration"
    remedy = "write a list: defaults: [/data: npz, _self_]"
    return Problem(f"{file} has `defaults` that are not understood", message[2], remedy)


def _no_plugin(message: re.Match[str], overrides: Sequence[str]) -> Problem:
    state, cause = "hydra.sweeper or hydra.launcher is not a mapping", "a file sets it to a value"
    remedy = "choose an option in `defaults`: - override /hydra/sweeper: optuna"
    return Problem(state, cause, remedy)


def _nothing_to_override(message: re.Match[str], overrides: Sequence[str]) -> Problem | None:
    file, key = message.groups()
    if key == "hydra":
        return _no_option(message, overrides)
    path, _, place = key.partition("@")
    group = _at_root(path, file or "")
    if file is None:
        option = _typed(overrides).get(key, SOME_OPTION)
        line = choosing_lines(group, option, place or key_of_option(group, option))[1]
        cause, remedy = "nothing has chosen an option of it", f"choose one by {line}"
    else:
        option = _listed(file, group)
        place = "" if place == group.replace("/", ".") else place
        line = choosing_lines(group, option, place or key_of_option(group, option))[0]
        cause = "nothing has chosen an option of it before"
        if group != path:
            cause = "without a slash, a group is looked for in the folder of the file"
        remedy = f"write into the `defaults` of {file}.yaml: {line}"
    known = options_of(group)
    choices = () if option in known else ranked(option, known)
    return Problem(f"there is no {key} to override", cause, remedy, choices)


def _of_another_key(message: re.Match[str], overrides: Sequence[str]) -> Problem:
    key, place = message.groups()
    option = _typed(overrides).get(key, SOME_OPTION)
    state = f"there is no {key} to override"
    return Problem(state, f"an option of {place} is chosen", f"override it: {place}={option}")


def _chosen_twice(message: re.Match[str], overrides: Sequence[str]) -> Problem:
    group = message[1] or message[2]
    typed = _typed(overrides)
    option = typed.get(group) or _listed(f"experiment/{typed.get('experiment', '')}", group)
    remedy = (
        f"on the command line {group}={option}, without a plus; in the `defaults` of a file"
        f" - override /{group}: {option}"
    )
    if group == "experiment":
        remedy = (
            "name one on the command line; a file that builds on another lists it in its"
            " `defaults` without the group: - NAME"
        )
    return Problem(f"{group} is chosen twice", "a second choice has to replace the first", remedy)


_Report = Callable[[re.Match[str], Sequence[str]], Problem | None]
_MESSAGES: Sequence[tuple[re.Pattern[str], _Report]] = (
    (re.compile(r"Could not delete from config\. '([^']+)' does not exist"), _no_key_to_delete),
    (
        re.compile(r"Could not delete from config\. The value of '([^']+)' is (.*) and not (.*)\."),
        _other_value_to_delete,
    ),
    (
        re.compile(r"(Ambiguous value for argument|Sweep parameters) '(.+?)'(?:$|\n| requires)"),
        _several_values,
    ),
    (re.compile(r"Could not delete '([^']+)'\. No match in the defaults list"), _nothing_to_delete),
    (
        re.compile(r"Config group override must be a string or a list\.|can only concatenate str"),
        _no_option,
    ),
    (
        re.compile(r"Could not append to config\. An item is already at '([^']+)'"),
        _set_already,
    ),
    (re.compile(r"Additional config directory '(.+)' not found"), _no_folder),
    (re.compile(r"Invalid defaults list in '([^']+)', (.+)"), _no_defaults),
    (re.compile(r"()(Unsupported item value in defaults.+)"), _no_defaults),
    (re.compile(r"argument of type '\w+' is not (?:iterable|a container)"), _no_plugin),
    (
        re.compile(r"(?:In '([^']+)': )?Could not override '([^']+)'\. No match in the defaults"),
        _nothing_to_override,
    ),
    (
        re.compile(r"Could not override '([^']+)'\.\s+Did you mean to override (\S+)\?"),
        _of_another_key,
    ),
    (
        re.compile(r"Multiple values for (\S+)\.|(\S+) appears more than once in the final"),
        _chosen_twice,
    ),
)


def _at_root(path: str, file: str) -> str:
    """Returns a group without the folder of the file that lists it without a slash."""
    folder = file.rpartition("/")[0]
    return path.removeprefix(f"{folder}/") if folder else path


def _typed(overrides: Sequence[str]) -> dict[str, str]:
    """Returns key -> value of overrides."""
    return dict(override.lstrip("+").split("=", 1) for override in overrides if "=" in override)


def _listed(file: str, group: str) -> str:
    """Returns the option of a group in the `defaults` of a file."""
    for entry in value_in(file, "defaults") or ():
        for key, option in entry.items() if isinstance(entry, dict) else ():
            if re.sub(r"^override |@.*|/(?=.)", "", str(key)).strip() == group.replace("/", ""):
                return str(option)
    return SOME_OPTION
