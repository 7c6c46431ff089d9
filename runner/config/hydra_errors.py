"""Translates errors of Hydra and OmegaConf into problems that name the valid choices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import yaml
from omegaconf import DictConfig
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from runner.config.keys import annotation, keys, options, paths, words
from runner.config.schema import RunConfig
from runner.errors import ConfigError, Problem, ranked, similar

if TYPE_CHECKING:
    from hydra.errors import MissingConfigException, OverrideParseException


def explain(error: BaseException) -> ConfigError:
    """Translates an error raised while composing a configuration into one problem."""
    from hydra.errors import MissingConfigException, OverrideParseException

    if isinstance(error, MissingConfigException):
        return ConfigError(_missing_config(error))
    if isinstance(error, OverrideParseException):
        return ConfigError(_unreadable_override(error))
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return ConfigError(_bad_yaml(error, error.problem_mark))
    text = str(error)
    if match := re.match(_NOT_SET, text):
        return ConfigError(_not_there(match, error))
    for pattern, *worded in _WORDED:
        if match := re.match(pattern, text):
            return ConfigError(Problem(*(each.format(**match.groupdict()) for each in worded)))
    for cause in _chain(error):
        if isinstance(cause, OmegaConfBaseException) and cause.msg is not None:
            return ConfigError(_refused(cause, text))
    state, *rest = text.splitlines() or [type(error).__name__]
    return ConfigError(Problem(state, " ".join(line.strip() for line in rest)))


def unresolved(error: OmegaConfBaseException, known: Iterable[str] = ()) -> Problem:
    """Returns the problem of an interpolation such as `${data.modulus}` that has no value."""
    key = error.full_key or "the configuration"
    first = str(error).splitlines()[0]
    wrong = re.match(r"Interpolation key '(?P<key>[^']+)' not found", first)
    return Problem(
        f"{key} cannot be resolved",
        first,
        f"fix the ${{...}} in {key}" + (", or give the key it names a value" if wrong else ""),
        similar(wrong["key"], known) if wrong else (),
    )


def without_experiment(key: str, *, by_folder: bool = False) -> Problem:
    """Returns the problem of an override of a key that no experiment sets.

    Args:
      key: the key.
      by_folder: whether the command names a run by its folder instead.
    """
    root = key.partition(".")[0]
    return Problem(
        f"{key} is given, but there is no {root} to change",
        f"no experiment sets {root}, or ~{root} deletes it",
        "leave it out, because the run's own configuration is used, or add +experiment=NAME"
        if by_folder
        else "add +experiment=NAME",
    )


def unknown_key(key: str, source: str = "") -> Problem:
    """Returns the problem of a key that no structured config has, from a file `source` or none."""
    parent, _, wrong = key.rpartition(".")
    siblings = keys(annotation(parent, RunConfig))
    prefix = f"{parent}." if parent else ""
    known = [f"{prefix}{each}" for each in siblings]
    if parent.startswith("scaffolds."):
        return Problem(
            f"{key} is not a key of a scaffold", _origin(source), choices=ranked(wrong, siblings)
        )
    top = keys(RunConfig)
    others = [each for each in paths(RunConfig) if not key.startswith(f"{each}.")]
    same = [each for each in others if each.endswith(f".{wrong}")]
    close = (*same, *similar(key, others))
    return Problem(
        f"{key} is not a key of the configuration",
        _origin(source),
        ""
        if close
        else "arguments of your own classes belong below data, model, loss, metrics, optimizer, "
        "hooks, params or graph; all else is one of the choices",
        tuple(dict.fromkeys((*close, *ranked(key, known or top)))),
    )


def bad_value(key: str, cause: str, source: str = "") -> Problem:
    """Returns the problem of a value that does not fit its key, from a file `source` or none."""
    kind = annotation(key, RunConfig)
    allowed = options(kind)
    given = re.search(r"[Vv]alue '(?P<value>.*?)'", cause)
    return Problem(
        f"{key} has a value that does not fit",
        f"{cause}{f' (in {source})' if source else ''}",
        "" if allowed or kind is None else f"give {words(kind)}",
        ranked(given["value"] if given else "", allowed),
    )


def _origin(source: str) -> str:
    return f"{source} sets it: " * bool(source) + "it is misspelt, or belongs elsewhere"


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _missing_config(error: MissingConfigException) -> Problem:
    first = str(error).splitlines()[0]
    wanted = error.missing_cfg_file
    if wanted is None or "/" not in wanted:
        return Problem(first, remedy="leave out --config-path and --config-name; --config-dir adds")
    group, _, name = wanted.rpartition("/")
    source = re.match(r"In '(?P<file>[^']+)'", first)
    asked = f"; {source['file']}.yaml asks for it" if source and source["file"] != "config" else ""
    return Problem(
        f"{group} {name!r} is not known",
        f"there is no {name}.yaml in the `{group}` folder of any config directory{asked}",
        "fix the name, or add your folder with --config-dir",
        ranked(name, error.options or ()),
    )


def _unreadable_override(error: OverrideParseException) -> Problem:
    lines = str(error).splitlines()
    reason = next((each for each in lines if not each.startswith(("Error parsing", "See"))), "")
    if reason.startswith("missing EQUAL"):
        reason = "it has no ="
    return Problem(
        f"{error.override!r} is not an override",
        reason,
        "write key=value to change, +key=value to add, ~key to delete; quote a value that contains "
        "any of {}[](),:=$ and the whole for your shell: 'key=\"a,b\"'",
    )


def _bad_yaml(error: yaml.MarkedYAMLError, mark: yaml.Mark) -> Problem:
    return Problem(
        f"{mark.name}, line {mark.line + 1}, column {mark.column + 1} is not valid YAML",
        ", ".join(each for each in (error.context, error.problem) if each),
        "fix the file; values that begin with any of []{}*&!%@` or hold `: ` need quotes",
    )


def _refused(cause: OmegaConfBaseException, text: str) -> Problem:
    """The problem of a value, or a key, that OmegaConf does not accept."""
    key, first = str(cause.full_key or ""), str(cause).splitlines()[0]
    if isinstance(cause, MissingMandatoryValue) and key:
        return without_experiment(key)
    file = re.match(r"In '(?P<file>[^']+)'", text)
    source = f"{file['file']}.yaml" if file else ""
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        if source and key == source.split("/")[0] and annotation(key, RunConfig) is None:
            return Problem(
                f"{source} is composed below the key {key!r}",
                "its first line does not put its keys at the root",
                "make `# @package _global_` its first line",
            )
        return unknown_key(key, source)
    return bad_value(key or source or "the configuration", first, source)


def _not_there(match: re.Match[str], error: BaseException) -> Problem:
    """The problem of an override, without a plus, of a key that is not set."""
    key, line = match["key"], match["line"]
    siblings: list[str] = []
    for cause in _chain(error):
        if isinstance(cause, OmegaConfBaseException) and isinstance(cause.parent_node, DictConfig):
            siblings = [str(each) for each in cause.parent_node]
            if str(cause.full_key).startswith(f"{key}."):
                key = str(cause.full_key)  # The override's value is a dictionary with this key.
            break
    if key.startswith("hydra."):
        return Problem(f"{key} is not a key of Hydra", remedy="see --hydra-help")
    if annotation(key, RunConfig) is None:
        return unknown_key(key)
    parent, _, wrong = key.rpartition(".")
    return Problem(
        f"{key} is not set, so there is nothing to override",
        "the experiment sets no such key" + f" below {parent}" * bool(parent),
        f"fix the name, or put a plus before it to add it: +{line}",
        [f"{parent}.{each}" for each in similar(wrong, siblings)],
    )


_NOT_SET = r"Could not override '(?P<key>[^']+)'\.\nTo append .* use \+(?P<line>.+)"
# Pattern, then state, cause and remedy, in which `{...}` is a group of the pattern.
_WORDED = (
    (
        r"Multiple values for experiment\.",
        "two experiments are named",
        "a run has one experiment",
        "name one, or sweep over both: -m +experiment=a,b",
    ),
    (
        r"Multiple values for (?P<group>\S+)\. .*override \S+: (?P<name>[^']+)'",
        "{group} is chosen twice",
        "one is chosen already, by default or by the experiment",
        "leave out the plus to override it: {group}={name}",
    ),
    (
        r"(Ambiguous value for argument|Sweep parameters) '(?P<key>[^=']*)=(?P<values>.*)'",
        "{key}={values} holds several values",
        "a single run takes one",
        "sweep over them with -m, or quote them if they are a single value: {key}=[{values}] is a "
        "list, '{key}=\"{values}\"' a string",
    ),
    (
        r"Could not override '(?P<group>[^']+)'\. No match .*\.\nTo append .* \+(?P<line>.+)",
        "{group} is not chosen by default, so it cannot be overridden",
        "",
        "put a plus before it: +{line}",
    ),
    (
        r"Additional config directory '(?P<path>[^']+)' not found",
        "--config-dir {path} is not a directory",
        "",
        "name the folder that holds your `experiment` folder",
    ),
    (
        r"(Error merging override ~|Could not delete ')(?P<key>[^=']+)",
        "~{key} cannot be deleted",
        "every run has that key",
        "leave it out, or give another value: {key}=...",
    ),
    (
        r"Could not delete from config\. '(?P<key>[^']+)'",
        "~{key} deletes nothing",
        "there is no such key, or it has no value",
        "leave it out; --cfg job shows what is there",
    ),
    (
        r"Could not append .* '(?P<key>[^']+)'.\nEither remove \+ prefix: '(?P<line>.*)'",
        "+{key} is set already, so it cannot be added",
        "",
        "leave out the plus: {line}",
    ),
    (
        r"Config group override must be a string or a list",
        "a config group is set to something other than the name of a file",
        "data=..., model=..., optimizer=... and other groups select a file by its name",
        "name a file, for example optimizer=sgd, or override a key: optimizer.learning_rate=...",
    ),
)
