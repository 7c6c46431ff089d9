"""The problems of single keys: unknown keys, values that do not fit, and unresolved references."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from typing import Any, get_args

from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.errors import KeyValidationError, OmegaConfBaseException

from runner.config.groups import group_of, misplaced, value_in
from runner.config.keys import annotation, hints, keys, misfits, options, paths, words
from runner.config.schema import RunConfig
from runner.config.spelling import number_or_text
from runner.config.value_rules import FINITE, MOST_BYTES, RULE
from runner.errors import Problem, ranked, similar


def unknown_key(key: str, place: str = "") -> Problem:
    """Returns the problem of a dotted key that no structured config has.

    Args:
      key: the key.
      place: the file that sets it, as the beginning of a sentence, or empty.
    """
    state = f"{key} is not a key of the configuration"
    cause = f"{place}it is misspelt, or belongs elsewhere"
    parent, _, name = key.rpartition(".")
    siblings = keys(annotation(parent, RunConfig)) if parent else ()
    if siblings:
        close = similar(name, siblings) or siblings
        return Problem(state, cause, choices=[f"{parent}.{sibling}" for sibling in close])
    close = similar(key, paths(RunConfig))
    if close:
        return Problem(state, cause, choices=close)
    remedy = (
        "arguments of your own classes belong below data, model, loss, metrics, optimizer, hooks, "
        "params or graph; all else is one of the choices"
    )
    return Problem(state, cause, remedy, keys(RunConfig))


def bad_value(key: str, error: OmegaConfBaseException, file: str = "") -> Problem:
    """Returns the problem of a value that does not fit the annotation of its dotted key.

    Args:
      key: the key; where `error` concerns a whole section, its parent.
      error: OmegaConf's.
      file: the file that sets it, such as `experiment/mine`; empty for an override.
    """
    first = str(error).splitlines()[0]
    place = f"In {file!r}: " if file else ""
    if section := _NO_SECTION.search(first):
        kinds = ((path, annotation(path, RunConfig)) for path in paths(RunConfig))
        named = (path for path, kind in kinds if getattr(kind, "__name__", "") == section["kind"])
        key = next(named, key)
        value: object = number_or_text(section["value"])
    else:
        value = error.value
        value = number_or_text(str(value)) if isinstance(value, Node) else value
        if not error.full_key and file and "ListConfig" in first:
            content = value_in(file, "") or {}  # Hydra also finds files by `hydra.searchpath`.
            if wrong := next(misfits(content, RunConfig), None):
                return misfit(*wrong, place)
            lists = (name for name, item in content.items() if isinstance(item, list))
            key = next((name for name in lists if annotation(name, RunConfig) is Any), key)
    kind = annotation(key, RunConfig)
    group = group_of(key)
    if group is not None and isinstance(value, str):
        return misplaced(key, value, file)
    if isinstance(error, KeyValidationError):
        name = str(error.key)
        return _bad_name(key.removesuffix(f".{name}"), name, place)
    remedy = _remedy(key)
    if kind is Any and "ListConfig" in first:
        return Problem(f"{key} is a list", f"{place}the experiment has a mapping there", remedy)
    if "deletion" in first:
        return Problem(f"~{key} cannot be deleted", "every run has this key", f"set it: {key}=...")
    if kind is None and (state := _not_hydras(key, error, first)):
        return Problem(state, f"{place}it must be a mapping", "see --hydra-help")
    if kind is None or kind is Any:
        return Problem(f"{key} has a value that does not fit", f"{place}{first}", remedy)
    cause = f"{place}{_wanted(kind)}"
    if "not Optional" in first:
        state = f"{key} is null"
    elif value is None:  # Of a list in place of a mapping, or the reverse, it names both kinds.
        state = f"{key} is {'a list' if 'ListConfig' in first else 'a mapping'}"
    elif isinstance(value, str) and value[:1] in ("[", "{"):  # OmegaConf's spelling of a container.
        state = f"{key} is {'a list' if value[0] == '[' else 'a mapping'}"
    else:
        state = f"{key} is {_shown(value)}"
    return Problem(state, cause, remedy, options(kind))


def _not_hydras(key: str, error: OmegaConfBaseException, first: str) -> str:
    """Returns what is wrong with a value in place of a mapping of Hydra's; empty where it is not.

    OmegaConf does not always name the key.
    """
    if section := _NO_SECTION.search(first):
        return f"{key if error.full_key else 'a key'} is {section['value']}"
    if first.startswith("Index "):
        return f"{key.rpartition('.')[0]} is a list"
    if first == "Cannot merge DictConfig with ListConfig":
        return f"{key if error.full_key else 'a key'} is a list"
    return ""


def misfit(key: str, value: object, place: str = "") -> Problem:
    """Returns the problem of a list or a mapping at a key to which it does not belong."""
    kind = annotation(key, RunConfig)
    what = "a list" if isinstance(value, list) else "a mapping"
    cause = f"{place}{_wanted(kind)}"
    return Problem(f"{key} is {what}", cause, _remedy(key), options(kind))


def _wanted(kind: Any) -> str:
    wanted = words(kind, "one of the choices").replace("to the values below", "to the choices")
    article = "" if wanted.startswith(("true", "one of")) else "a "
    return f"it must be {article}{wanted}"


# OmegaConf's message about a value in place of a whole section.
_NO_SECTION = re.compile(r"\w+ is not a subclass of (?P<kind>\w+)\. value: (?P<value>.*)")


def _bad_name(parent: str, name: str, place: str) -> Problem:
    """Returns the problem of a name in a mapping whose names are of another type."""
    names = words(get_args(annotation(parent, RunConfig))[0])
    remedy = _remedy(parent)
    if name.isdecimal() and names != "string":
        remedy = f"give the whole mapping: {parent}={{{name}: ...}}"
    elif names == "string":
        remedy = f"in a file, quote it: '{name}'; on the command line, +{parent}.{name}=..."
    return Problem(f"{parent} has the key {name}", f"{place}its keys are {names}s", remedy)


def _remedy(key: str) -> str:
    """Returns the remedy of the rule of a key's field."""
    parent, _, name = key.rpartition(".")
    kind = annotation(parent, RunConfig)
    field = next((f for f in fields(kind) if f.name == name), None) if is_dataclass(kind) else None
    return field.metadata.get(RULE, FINITE).remedy.replace("{key}", key) if field else ""


def unresolved(error: OmegaConfBaseException, names: Iterable[str] = ()) -> Problem:
    """Returns the problem of an interpolation such as `${data.modulus}` that has no value."""
    key = error.full_key or "the configuration"
    first = str(error).splitlines()[0]
    unknown = re.match(r"Interpolation key '(?P<key>[^']+)' not found", first)
    return Problem(
        f"{key} cannot be resolved",
        first,
        f"fix the ${{...}} in {key}" + (", or give the key it names a value" if unknown else ""),
        similar(unknown["key"], names) if unknown else (),
    )


# Creating one takes longer than all else about a scaffold; merging copies it.
_structured: Callable[[Any], DictConfig] = cache(OmegaConf.structured)


def merged(kind: Any, value: Any, key: str) -> tuple[DictConfig, list[Problem]]:
    """Merges a value over a structured config, and returns the problems of what does not fit.

    Args:
      kind: the structured config.
      value: a mapping of plain values, or an instance of `kind`.
      key: the dotted key of the value in the configuration.
    """
    typed = _structured(kind)
    entry = asdict(value) if isinstance(value, kind) else value
    if isinstance(entry, str) and group_of(key):
        return typed, [misplaced(key, entry)]
    if not isinstance(entry, Mapping):
        state = f"{key} is {'null' if entry is None else repr(entry)}"
        return typed, [Problem(state, "it must be a mapping", choices=keys(kind))]
    with contextlib.suppress(OmegaConfBaseException):
        return OmegaConf.merge(typed, entry), []  # type: ignore[return-value]
    problems = []
    for name, item in entry.items():
        try:
            typed = OmegaConf.merge(typed, {name: item})  # type: ignore[assignment]
        except OmegaConfBaseException as error:
            place = f"{key}.{error.full_key or name}"
            unknown = annotation(place, RunConfig) is None
            problems.append(unknown_key(place) if unknown else bad_value(place, error))
    return typed, problems


def rule_problems(values: Any, kind: Any, prefix: str = "") -> list[Problem]:
    """Returns a problem for each value that the rule of its field refuses.

    Args:
      values: the plain values of a structured config.
      kind: the structured config.
      prefix: the dotted key of the structured config and a dot; empty for the root.
    """
    problems: list[Problem] = []
    for field in fields(kind):
        value, key = values.get(field.name), f"{prefix}{field.name}"
        if isinstance(value, Mapping) and is_dataclass(hints(kind)[field.name]):
            problems += rule_problems(value, hints(kind)[field.name], f"{key}.")
            continue
        rule = field.metadata.get(RULE, FINITE)
        if value is not None and (cause := rule.cause(value) or FINITE.cause(value)):
            default = field.default not in (None, "", MISSING)
            remedy = f"the default is {_shown(field.default)}" if default else ""
            remedy = rule.remedy.replace("{key}", key) or remedy
            choices = ranked(str(value), rule.choices)
            problems.append(Problem(f"{key} is {_shown(value)}", cause, remedy, choices))
    return problems


def _shown(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else repr(value)
    return f"{text[:60]}...{text[-1]}" if len(text) > MOST_BYTES else text


def epoch_count_problems(train: Mapping[str, Any], *, counted: bool) -> Iterator[Problem]:
    """Yields the problems of numbers of epochs; `counted`, where callbacks count them."""
    if train["initial_epoch"] >= (train["epochs"] or math.inf):
        yield Problem(
            f"train.initial_epoch is {train['initial_epoch']}, and train.epochs {train['epochs']}",
            "epochs up to initial_epoch are not trained, so none is left",
            "train.epochs is the last epoch, not how many follow: set a larger one",
        )
    if counted or train["epochs"] or train["steps_per_epoch"]:
        return
    for key in ("log_every", "evaluate_every", "checkpoint_every"):
        if isinstance(train[key], str) and "epoch" in train[key]:
            cause = "the run counts steps, not epochs"
            yield Problem(f"train.{key} is {train[key]}", cause, "set train.epochs")
