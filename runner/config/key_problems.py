"""The problems of single keys: unknown keys, values that do not fit, and unresolved references."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.choices import FINITE, MOST_BYTES, RULE
from runner.config.keys import annotation, hints, keys, options, paths
from runner.config.schema import RunConfig
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


def bad_value(key: str, cause: str) -> Problem:
    """Returns the problem of a value that does not fit the annotation of its dotted key."""
    choices = options(annotation(key, RunConfig))
    return Problem(f"{key} has a value that does not fit", cause, choices=choices)


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
    if not isinstance(entry, Mapping):
        return typed, [Problem(f"{key} is {entry!r}", "it must be a mapping", choices=keys(kind))]
    with contextlib.suppress(OmegaConfBaseException):
        return OmegaConf.merge(typed, entry), []  # type: ignore[return-value]
    problems = []
    for name, item in entry.items():
        try:
            typed = OmegaConf.merge(typed, {name: item})  # type: ignore[assignment]
        except OmegaConfBaseException as error:
            place = f"{key}.{error.full_key or name}"
            unknown = annotation(place, RunConfig) is None
            cause = str(error).splitlines()[0]
            problems.append(unknown_key(place) if unknown else bad_value(place, cause))
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
