"""The choices and bounds of configuration keys."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from runner.config.schedule import as_schedule

MOST_BYTES = 255  # What file systems take as one name.

# Enum members carry the spelling that a user types, because OmegaConf matches members by name.


class Mode(Enum):
    """The action of `python -m runner` on the experiment."""

    # Trains the experiment, after any experiments that it starts from.
    train = "train"
    # Only shows where every variable's value would come from.
    plan = "plan"
    # Evaluates the best checkpoint of the last run on the test split. That is the last finished run
    # of this configuration, or the run in `run_dir`.
    evaluate = "evaluate"
    # Writes what that checkpoint predicts for the test split. `predict` names other features.
    predict = "predict"
    # Exports that checkpoint as a SavedModel.
    export = "export"


class Resume(Enum):
    """The treatment of an unfinished run, interrupted or failed, of the same configuration."""

    # Resumes it if there is one; otherwise starts a new run.
    auto = "auto"
    # Starts a new run.
    never = "never"
    # Resumes it; without one, it is an error.
    must = "must"
    # Continues a run, even a finished one, with other settings. `train.steps`, arguments of the
    # optimizer, clipping, hooks, callbacks and metrics may differ, and nothing else.
    extend = "extend"


class EvaluatedSplit(Enum):
    """The split that `mode=evaluate` evaluates."""

    test = "test"
    validation = "validation"
    # One pass over the training data. If that repeats, its `sizes()` must report how many examples
    # there are.
    train = "train"


class Goal(Enum):
    """The better direction of an objective."""

    maximize = "maximize"
    minimize = "minimize"


class Missing(Enum):
    """The reaction to a tensor that a checkpoint lacks for a variable."""

    error = "error"
    # The initializer gives the value.
    init = "init"


class Collision(Enum):
    """The reaction to several scaffolds that claim one variable."""

    error = "error"
    # The first scaffold gives the value.
    first = "first"
    # The last scaffold gives the value.
    last = "last"


class StateChoice(Enum):
    """A class of state that a checkpoint may bring."""

    # The trainable and other variables of the model.
    weights = "weights"
    # Moving means and variances.
    batch_norm = "batch_norm"
    # Moving averages of the weights (EMA).
    moving_averages = "moving_averages"
    # Optimizer state per weight, for example Adam's moments.
    optimizer_slots = "optimizer_slots"
    # The number of steps taken.
    global_step = "global_step"


class ShapePolicy(Enum):
    """The reaction to a tensor with another shape than its variable."""

    error = "error"
    # The initializer gives the value.
    init = "init"
    # Copies the elements in row-major order; the sizes must be equal.
    reshape = "reshape"
    # Copies the part that both have in common, from the start of each axis; the rest keeps its
    # initial value.
    pad_or_slice = "pad_or_slice"


class Expect(Enum):
    """The number of a scaffold's variables that must take their value from its checkpoint."""

    # Every one.
    all = "all"
    # At least one.
    some = "some"
    # None; all of them start from their initializers.
    scratch = "scratch"


class ExportFormat(Enum):
    """The format of an export."""

    # A SavedModel, for servers and MLflow.
    savedmodel = "savedmodel"
    # The Keras model, compiled, with its optimizer: `keras.models.load_model`.
    keras = "keras"
    # Its weights alone: `model.load_weights`.
    weights = "weights"


class Initialize(Enum):
    """The initializers that run before the restoration."""

    # Every one whose value or effects can be observed: what is overwritten unread is not computed.
    all = "all"
    # Only those whose value is not provably overwritten, whatever else computing it does.
    remaining = "remaining"


class Placement(Enum):
    """The distribution of variables over parameter servers."""

    # Each variable to the next server in turn.
    round_robin = "round_robin"
    # Each variable to the server with the fewest bytes so far.
    by_size = "by_size"


class PlanFormat(Enum):
    """The format in which `mode=plan` shows the plan."""

    table = "table"
    json = "json"
    html = "html"


# Keywords cannot be attributes, so the members of these are looked up: NonFinite["raise"].
NonFinite = Enum(
    "NonFinite",
    {
        # Ends training cleanly.
        "stop": "stop",
        # Raises an error.
        "raise": "raise",
        # Restores the last checkpoint and continues with a lower learning rate.
        "rollback": "rollback",
    },
)
OnError = Enum(
    "OnError",
    {
        # Warns and continues; the next save tries again.
        "warn": "warn",
        # Raises an error.
        "raise": "raise",
    },
)
OnTrialError = Enum(
    "OnTrialError",
    {
        # Runs the other trials.
        "continue": "continue",
        # Starts no further trial.
        "stop": "stop",
    },
)


DeviceBatch = Enum(
    "DeviceBatch",
    {
        # The batch of a step, which the devices divide.
        "global": "global",
        # The batch of one device: a step takes as many as there are devices in all tasks.
        "per_device": "per_device",
    },
)


# Stands for the values that training would start from, in place of a run's checkpoint.
SCAFFOLDS = "scaffolds"

# The remedy for a missing checkpoint of a scaffold, besides correcting its path.
OPTIONAL = "set `optional: true` to initialise these variables instead"

# How a configuration names the experiment that a checkpoint comes from, and checkpoints in MLflow.
EXPERIMENT = "experiment:"
MLFLOW_SCHEMES = ("runs:/", "models:/", "mlflow-artifacts:")


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
STATE = rule(
    _is(len, "nothing would be restored"),
    "to initialise the scaffold, set checkpoint=null",
    choices=tuple(StateChoice.__members__),
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
