"""Conditions for the values of configuration keys, besides their types."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config.choices import INTERNAL, SCAFFOLDS, StateClass
from runner.config.schedule import as_schedule

MOST_BYTES = 255  # What file systems take as one name.


@dataclass(frozen=True)
class ValueRule:
    """A condition for the values of a key, besides its type.

    Attributes:
      cause: returns why a value is refused, or an empty string.
      remedy: what to type instead, `{key}` standing for the key; by default the field's default.
      choices: the valid values, where they can be listed.
      words: what it accepts, for the reference; of an untyped key, in place of a type.
    """

    cause: Callable[[Any], str]
    remedy: str = ""
    choices: tuple[str, ...] = ()
    words: str = ""


# Key of the metadata of a structured config's field.
RULE = "rule"


def rule(
    cause: Callable[[Any], str],
    remedy: str = "",
    *,
    choices: Sequence[str] = (),
    words: str = "",
) -> dict[str, ValueRule]:
    """Returns the metadata of a field with a `ValueRule`; null is never refused."""
    return {RULE: ValueRule(cause, remedy, tuple(choices), words)}


def at_least(least: float, remedy: str = "", most: float = math.inf) -> dict[str, ValueRule]:
    """Returns the metadata of a field that holds a number from `least` to `most`."""
    words = f"at least {least}" if most == math.inf else f"from {least:g} to {most:.10g}"
    return _bounded(lambda value: least <= value <= most, words, remedy)


def above(bound: float, remedy: str = "", most: float = math.inf) -> dict[str, ValueRule]:
    """Returns the metadata of a field that holds a number above `bound`, up to `most`."""
    words = f"above {bound:g}" + (f" and at most {most:g}" if most != math.inf else "")
    return _bounded(lambda value: bound < value <= most, words, remedy)


def _bounded(accepted: Callable[[Any], bool], words: str, remedy: str) -> dict[str, ValueRule]:
    return rule(_is(accepted, f"it must be {words}"), remedy, words=words)


def _schedule(value: object) -> str:
    try:
        as_schedule(value)  # type: ignore[arg-type]
    except ValueError as error:
        return str(error)
    return ""


def _average(value: object) -> str:
    if isinstance(value, list):
        fits = bool(value) and {type(item) for item in value} <= {str, int}
    else:
        fits = re.fullmatch(r"\s*last\s+0*[1-9]\d*\s*", str(value)) is not None
    return "" if fits else "it is neither `last N` nor a list of steps and paths"


def _strings(mapping: Mapping[str, object]) -> str:
    # OmegaConf accepts containers as the values of a dict[str, str].
    for key, value in mapping.items():
        if not isinstance(value, str):
            return f"the value of {key!r} is {value!r}, which is not a string"
    return ""


def _axes(mapping: Mapping[str, list[int]]) -> str:
    for pattern, axes in mapping.items():
        if not axes or sorted(axes) != list(range(len(axes))):
            return f"{pattern!r} must hold each of 0 to {max(len(axes) - 1, 0)} once"
    return ""


def _patterns(patterns: Sequence[str]) -> str:
    causes = []
    for pattern in patterns:
        try:
            re.compile(pattern)
        except TypeError:  # OmegaConf accepts containers as the elements of a list[str].
            causes.append(f"{pattern!r} is not a string")
        except re.error as error:
            causes.append(f"{pattern!r} is not a regular expression: {error}")
    return "; ".join(causes)


def _is(accepted: Callable[[Any], object], cause: str) -> Callable[[Any], str]:
    return lambda value: "" if accepted(value) else cause


def _path(empty: str) -> Callable[[str], str]:
    """Returns why a string is no path; `empty` if it is empty."""

    def cause(path: str) -> str:
        if not path.strip():
            return empty
        if "\0" in path:
            return "it holds a NUL character"
        too_long = any(len(part.encode()) > MOST_BYTES for part in path.split("/"))
        return f"no file name is longer than {MOST_BYTES} bytes" if too_long else ""

    return cause


def _name(name: str) -> str:
    outside = name.startswith("/") or not {".", ".."}.isdisjoint(name.split("/"))
    cause = "its runs would be outside the folder of runs"
    return cause if outside else _path("runs are filed under it")(name)


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


FINITE = ValueRule(_is(_is_finite, "it must be a finite number"))  # Holds for every field.
CHECKPOINT = rule(_path("it names no checkpoint"), "null starts from initializers")
SHA256 = rule(_is(re.compile("(sha256:)?[0-9a-f]{64}").fullmatch, "it is not 64 hex digits"))
_DEVICES = re.compile(r"all|[1-9]\d*|\[('?/?((gpu|cpu):)?\d+'?(, )?)+\]", re.IGNORECASE)
DEVICES = rule(
    _is(
        lambda value: _DEVICES.fullmatch(str(value)),
        "it is neither a number of devices, nor `all`, nor a list of devices",
    ),
    "for example {key}=2, or {key}=[gpu:0,gpu:2]",
    words="a number, `all`, or a list such as `[0, 2]` or `[gpu:0, gpu:2]`",
)
PROOF = rule(_path("it names no reference"), "null proves nothing")
NAME = rule(_name, "name=my_experiment")
RUN_DIR = rule(_path("runs need a folder"))
SCHEDULE = rule(_schedule, words="such as `10 minutes` or `at 100, at 1000`")
# What TensorFlow and the operating system can count in milliseconds, about 30 years.
_MOST_SECONDS = 1e9
WAIT = above(0, most=_MOST_SECONDS)
GRACE = at_least(0, most=_MOST_SECONDS)
DECAY = _bounded(lambda value: 0 < value < 1, "between 0 and 1", "null keeps none")
SCALE = rule(
    _is(lambda value: 0 < value < math.inf, "it must be a number greater than 0"),
    "to keep the variables as they are, set trainable=false",
    words="above 0",
)
WHICH = rule(
    _is(
        re.compile(r"latest|best|\d+").fullmatch,
        "it names one checkpoint of a directory: `latest`, `best`, or a global step",
    ),
    choices=("latest", "best"),
)
RUN_WHICH = rule(
    _is(
        re.compile(rf"latest|best|{SCAFFOLDS}|\d+").fullmatch,
        "it must be `best`, `latest` or a global step of the run, or `scaffolds`, "
        "the values that training would start from",
    ),
    choices=("best", "latest", SCAFFOLDS),
)
AVERAGE = rule(
    _average, "for example ++{key}='last 5'", words="`last N`, a list of steps or paths, or null"
)
_STATES = [state.name for state in StateClass if state not in INTERNAL]
STATE = rule(
    _is(
        lambda names: names and all(name in _STATES for name in names),
        "it must list what is restored from the checkpoint",
    ),
    "to initialise the scaffold, set checkpoint=null",
    choices=_STATES,
)
STRINGS = rule(_strings)
AXES = rule(_axes, "for a dense kernel [1, 0], for an OIHW convolution kernel [2, 3, 1, 0]")
PATTERNS = rule(_patterns, "what its first group matches is masked, or else all it matches")
MODEL_NAME = rule(
    _is(
        re.compile(r"(?=.*\S)[^/:']+").fullmatch,
        "the name of a registered model has no `/`, `:` or `'` in it",
    )
)
ALIAS = rule(
    _is(
        re.compile(r"(?!(?i:latest|v\d+)$)[\w-]{1,255}").fullmatch,
        "it must be of letters, digits, `_` and `-`, and not `latest` or like `v1`",
    )
)
