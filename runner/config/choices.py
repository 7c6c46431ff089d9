"""What a configuration key accepts: its choices, its bounds and its type."""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from runner.config.schedule import as_schedule
from runner.errors import Problem, ranked

# Enum members carry the spelling that a user types, because OmegaConf matches members by name.


class Mode(Enum):
    """What `python -m runner` does with the experiment."""

    train = "train"
    plan = "plan"
    evaluate = "evaluate"
    export = "export"


class Resume(Enum):
    """What to do about an unfinished run, interrupted or failed, of the same configuration."""

    auto = "auto"
    never = "never"
    must = "must"
    # Continues a run, also a finished one, that differs in a smaller `train.steps` alone.
    extend = "extend"


class EvaluatedSplit(Enum):
    """Which split `mode=evaluate` evaluates."""

    test = "test"
    validation = "validation"
    # One pass over it: as many examples as the data's `sizes()` report, where it repeats.
    train = "train"


class Goal(Enum):
    """Whether a larger or a smaller objective is better."""

    maximize = "maximize"
    minimize = "minimize"


class Missing(Enum):
    """What to do when a checkpoint lacks a tensor that a variable asks for."""

    error = "error"
    init = "init"


class Collision(Enum):
    """What to do when several scaffolds claim one variable."""

    error = "error"
    first = "first"
    last = "last"
    # The mean of their tensors, computed in float64.
    mean = "mean"


class StateChoice(Enum):
    """A class of state that a checkpoint may bring."""

    weights = "weights"
    batch_norm = "batch_norm"
    moving_averages = "moving_averages"
    optimizer_slots = "optimizer_slots"
    global_step = "global_step"


class ShapePolicy(Enum):
    """What to do when a tensor has another shape than its variable."""

    error = "error"
    # The initializer gives the value.
    init = "init"
    # The elements in row-major order; the sizes must be equal.
    reshape = "reshape"
    # What both have in common from the origin; the rest keeps its initial value.
    pad_or_slice = "pad_or_slice"


class Expect(Enum):
    """How many of a scaffold's variables must take their value from its checkpoint."""

    all = "all"
    # At least one.
    some = "some"
    # None: all of them start from their initializers.
    scratch = "scratch"


class Initialize(Enum):
    """Which initializers run before the restoration."""

    all = "all"
    # Not those whose value is provably overwritten.
    remaining = "remaining"


class Placement(Enum):
    """How variables are spread over parameter servers."""

    round_robin = "round_robin"
    # Each to the one that holds the fewest bytes so far.
    by_size = "by_size"


class PlanFormat(Enum):
    """How `mode=plan` shows the plan."""

    table = "table"
    json = "json"
    html = "html"


# Ends training in an orderly way, raises, or goes back to the last checkpoint with a lower learning
# rate. Members are looked up, NonFinite["raise"]: a keyword cannot be an attribute.
NonFinite = Enum("NonFinite", {"stop": "stop", "raise": "raise", "rollback": "rollback"})


# A keyword likewise.
OnError = Enum("OnError", {"warn": "warn", "raise": "raise"})


# Continues with the other trials, or starts no further one. Members are looked up, as above.
OnTrialError = Enum("OnTrialError", {"continue": "continue", "stop": "stop"})


# The checkpoint to evaluate or export that is no run's: what training would start from.
SCAFFOLDS = "scaffolds"

# The remedy for a scaffold's checkpoint that is not there, besides correcting its path.
OPTIONAL = "set `optional: true` to initialise these variables instead"

# How a configuration names the experiment that a checkpoint comes from, and checkpoints in MLflow.
EXPERIMENT = "experiment:"
MLFLOW_SCHEMES = ("runs:/", "models:/", "mlflow-artifacts:")


@dataclass(frozen=True)
class Rule:
    """What a value must be, besides its key's type.

    Attributes:
      cause: returns why a value is refused, or an empty string.
      remedy: what to type instead, `{key}` standing for the key; by default the field's default.
      choices: the valid values, where they can be listed.
    """

    cause: Callable[[Any], str]
    remedy: str = ""
    choices: tuple[str, ...] = ()


# Keys of the metadata of a structured config's field.
_RULE, _ENTRIES = "rule", "entries"


def rule(
    cause: Callable[[Any], str], remedy: str = "", choices: Sequence[str] = ()
) -> dict[str, Rule]:
    """Returns the metadata of a field with a `Rule`; null is never refused."""
    return {_RULE: Rule(cause, remedy, tuple(choices))}


def at_least(least: float, remedy: str = "", most: float = math.inf) -> dict[str, Rule]:
    """Returns the metadata of a field that holds a number from `least` to `most`."""
    cause = f"it must be at least {least}"
    if most != math.inf:
        cause = f"it must be from {least:g} to {most:.10g}"
    return rule(lambda given: "" if least <= given <= most else cause, remedy)


def above(bound: float, remedy: str = "", most: float = math.inf) -> dict[str, Rule]:
    """Returns the metadata of a field that holds a number above `bound`, up to `most`."""
    cause = f"it must be above {bound:g}" + (f" and at most {most:g}" if most != math.inf else "")
    return rule(lambda given: "" if bound < given <= most else cause, remedy)


def entries(kind: type) -> dict[str, type]:
    """Returns the metadata of an untyped field that holds structured configs by name."""
    return {_ENTRIES: kind}


def _schedule(given: object) -> str:
    try:
        as_schedule(given)  # type: ignore[arg-type]
    except ValueError as error:
        return str(error)
    return ""


def _average(given: object) -> str:
    if isinstance(given, list):
        fits = bool(given) and {type(each) for each in given} <= {str, int}
    else:
        fits = re.fullmatch(r"\s*last\s+0*[1-9]\d*\s*", str(given)) is not None
    return "" if fits else "it is neither `last N` nor a list of steps and paths"


def _strings(given: Mapping[str, object]) -> str:
    # OmegaConf lets containers pass as the values of a dict[str, str].
    wrong = (f"the value of {k!r} is {v!r}" for k, v in given.items() if not isinstance(v, str))
    return next((f"{each}, which is not a string" for each in wrong), "")


def _axes(given: Mapping[str, list[int]]) -> str:
    for pattern, axes in given.items():
        if not axes or sorted(axes) != list(range(len(axes))):
            return f"{pattern!r} must hold each of 0 to {max(len(axes) - 1, 0)} once"
    return ""


def _patterns(given: Sequence[str]) -> str:
    found = []
    for pattern in given:
        try:
            re.compile(pattern)
        except re.error as error:
            found.append(f"{pattern!r} is not a regular expression: {error}")
    return "; ".join(found)


def _is(accepted: Callable[[Any], object], cause: str) -> Callable[[Any], str]:
    return lambda given: "" if accepted(given) else cause


NAME = rule(_is(str.strip, "runs are filed under it"), "name=my_experiment")
SCHEDULE = rule(_schedule)
# What TensorFlow and the operating system can count in milliseconds, about 30 years.
_MOST_SECONDS = 1e9
WAIT = above(0, most=_MOST_SECONDS)
GRACE = at_least(0, most=_MOST_SECONDS)
DECAY = rule(_is(lambda given: 0 < given < 1, "it must be between 0 and 1"), "null keeps none")
SCALE = rule(
    _is(lambda given: 0 < given < math.inf, "it must be a number greater than 0"),
    "to keep the variables as they are, set trainable=false",
)
WHICH = rule(
    _is(
        re.compile(r"latest|best|\d+").fullmatch,
        "it names one checkpoint of a directory: `latest`, `best`, or a global step",
    ),
    choices=("latest", "best"),
)
OWN_WHICH = rule(
    _is(
        re.compile(rf"latest|best|{SCAFFOLDS}|\d+").fullmatch,
        "it names a checkpoint of the run, `best`, `latest` or a global step, or `scaffolds`: "
        "what training would start from",
    ),
    choices=("best", "latest", SCAFFOLDS),
)
AVERAGE = rule(_average, "for example ++{key}='last 5'")
STATE = rule(
    _is(len, "its checkpoint would bring nothing"),
    "to initialise the scaffold, set checkpoint=null",
    tuple(StateChoice.__members__),
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


def rule_problems(values: Any, kind: Any, prefix: str = "") -> list[Problem]:
    """Returns a problem for each value that the rule of its field refuses.

    Args:
      values: the plain values of a structured config.
      kind: that structured config.
      prefix: empty, or its own dotted key and a dot.
    """
    found: list[Problem] = []
    for each in dataclasses.fields(kind):
        value, key = values.get(each.name), f"{prefix}{each.name}"
        checked: Rule | None = each.metadata.get(_RULE)
        if isinstance(value, Mapping) and dataclasses.is_dataclass(_hints(kind)[each.name]):
            found += rule_problems(value, _hints(kind)[each.name], f"{key}.")
        elif checked is not None and value is not None:
            cause = checked.cause(value)
            default = "" if each.default in (None, dataclasses.MISSING) else each.default
            remedy = checked.remedy.replace("{key}", key) or (
                f"the default is {_shown(default)}" if default != "" else ""
            )
            if cause:
                choices = ranked(str(value), checked.choices)
                found.append(Problem(f"{key} is {_shown(value)}", cause, remedy, choices))
    return found


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)


_WORDS: dict[Any, str] = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    str: "a string",
    type(None): "null",
    dict: "a mapping",
    list: "a list",
}


_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def annotation(key: str, root: Any) -> Any:
    """Returns the annotation at a dotted key below a structured config.

    That is the annotation of its values below a mapping, and None where there is no such key.
    """
    found, entry = root, None
    for part in key.split(".") if key else ():
        if entry is not None:
            found, entry = entry, None
        elif dataclasses.is_dataclass(found):
            field = next((each for each in dataclasses.fields(found) if each.name == part), None)
            if field is None:
                return None
            found, entry = _hints(found)[part], field.metadata.get(_ENTRIES)
        elif found is Any or get_origin(found) in (dict, list):
            found = (Any, *get_args(found))[-1]
        else:
            return None
    return found


def keys(kind: Any) -> tuple[str, ...]:
    """Returns the keys of a structured config in its order; none of another annotation."""
    if not dataclasses.is_dataclass(kind):
        return ()
    return tuple(field.name for field in dataclasses.fields(kind))


def options(kind: Any) -> tuple[str, ...]:
    """Returns the values that may be typed for an annotation, where they can be listed."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(kind.__members__)
    return ("true", "false") if kind is bool else ()


def words(kind: Any) -> str:
    """Returns in words what values an annotation allows."""
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(words(each) for each in get_args(kind))
    if dataclasses.is_dataclass(kind):
        return f"a mapping with the keys {', '.join(keys(kind))}"
    if options(kind):
        return " or ".join(options(kind))
    return _WORDS.get(get_origin(kind) or kind, "another value")


def paths(kind: Any, prefix: str = "") -> Iterator[str]:
    """Yields every key below a structured config as a dotted path."""
    for key in keys(kind):
        yield f"{prefix}{key}"
        yield from paths(_hints(kind)[key], f"{prefix}{key}.")


def unknown_keys(value: Any, kind: Any, prefix: str = "") -> list[str]:
    """Returns the dotted keys of a nested value that its structured config does not have.

    OmegaConf refuses them as well, except those that an override adds by a plus.
    """
    if not dataclasses.is_dataclass(kind) or not isinstance(value, dict):
        return []
    found = []
    for key, item in value.items():
        path = f"{prefix}{key}"
        known = key in keys(kind)
        found += unknown_keys(item, _hints(kind)[key], f"{path}.") if known else [path]
    return found
