"""How a configuration names checkpoints that are no paths."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from runner.config.choices import StateChoice
from runner.config.schema import ScaffoldConfig
from runner.errors import Problem, nearest

MLFLOW_SCHEMES = ("runs:/", "models:/", "mlflow-artifacts:")


_WHICH = ("latest", "best")


def scaffold_problems(name: str, scaffold: ScaffoldConfig) -> list[Problem]:
    """Returns the problems of a scaffold whose keys and types are valid."""
    return [
        *_texts(name, scaffold),
        *_training(name, scaffold),
        *_source(name, scaffold),
        *_transposes(name, scaffold),
    ]


def unset_vocabularies(name: str, entry: Mapping[str, Any]) -> list[Problem]:
    """Returns a problem for each vocabulary of a scaffold's plain values that names one file only.

    Args:
      name: the scaffold's name.
      entry: its values as they were composed.
    """
    vocabularies = entry.get("vocabulary") or {}
    if not isinstance(vocabularies, Mapping):
        return []
    return [
        Problem(
            f"scaffolds.{name}.vocabulary: {pattern!r} has no `{which}` vocabulary",
            "rows are moved from the place of a token in the old file to its place in the new one",
            "give both files, one token a line",
            ("old", "new", "axis"),
        )
        for pattern, files in vocabularies.items()
        if isinstance(files, Mapping)
        for which in ("old", "new")
        if files.get(which, "???") == "???"
    ]


def untracked_sources(name: str, scaffold: ScaffoldConfig) -> list[Problem]:
    """Returns a problem for each checkpoint in MLflow, where no tracking store is configured."""
    listed = scaffold.average if isinstance(scaffold.average, list) else []
    named = {"checkpoint": [scaffold.checkpoint], "average": listed}
    return [
        Problem(
            f"scaffolds.{name}.{key}: {each} is in MLflow, and tracking is off",
            "tracking.uri is null, so there is no store to ask for it",
            "set tracking.uri to the store that has it, or name a path",
        )
        for key, places in named.items()
        for each in places
        if isinstance(each, str) and each.startswith(MLFLOW_SCHEMES)
    ]


def _texts(name: str, scaffold: ScaffoldConfig) -> list[Problem]:
    # OmegaConf lets containers pass as the values of a dict[str, str].
    return [
        Problem(
            f"scaffolds.{name}.{key}: the value of {pattern!r} is {value!r}",
            "it must be a text",
        )
        for key in ("rename", "convert")
        for pattern, value in getattr(scaffold, key).items()
        if not isinstance(value, str)
    ]


def _training(name: str, scaffold: ScaffoldConfig) -> list[Problem]:
    key = f"scaffolds.{name}"
    problems = []
    step, multiplier = scaffold.freeze_until_step, scaffold.learning_rate_multiplier
    if step < 0:
        problems.append(
            Problem(
                f"{key}.freeze_until_step is {step}",
                "it is a global step, at least 0",
                f"0 trains from the start: ++{key}.freeze_until_step=0",
            )
        )
    if not (math.isfinite(multiplier) and multiplier > 0):
        problems.append(
            Problem(
                f"{key}.learning_rate_multiplier is {multiplier:g}",
                "it must be a number greater than 0",
                f"to keep the variables as they are: ++{key}.trainable=false",
            )
        )
    scheduled = [
        field
        for field, changed in (
            ("freeze_until_step", step > 0),
            ("learning_rate_multiplier", multiplier != 1.0),
        )
        if changed
    ]
    if scheduled and not scaffold.trainable:
        problems.append(
            Problem(
                f"{key} is not trainable, but sets {' and '.join(scheduled)}",
                "what never trains has no schedule",
                f"set ++{key}.trainable=true, or delete the schedule",
            )
        )
    return problems


def _source(name: str, scaffold: ScaffoldConfig) -> list[Problem]:
    key = f"scaffolds.{name}"
    problems = []
    which = scaffold.which
    if which is not None and which not in _WHICH and not re.fullmatch(r"\d+", which):
        problems.append(
            Problem(
                f"{key}.which is {which!r}",
                "it names one checkpoint of a directory: `latest`, `best`, or a global step",
                choices=nearest(which, _WHICH),
            )
        )
    average = scaffold.average
    if average is not None and not _can_be_averaged(average):
        problems.append(
            Problem(
                f"{key}.average is {average!r}",
                "it is neither `last N` nor a list of steps and paths",
                f"for example ++{key}.average='last 5'",
            )
        )
    if average is not None and which not in (None, "latest"):
        problems.append(
            Problem(
                f"{key} asks for which={which} and for an average",
                "`which` chooses one checkpoint, `average` takes several",
                "delete one of the two; a list may hold steps, `best` and `latest`",
            )
        )
    if scaffold.checkpoint is not None and not scaffold.checkpoint.strip() and average is None:
        problems.append(
            Problem(
                f"{key}.checkpoint is empty",
                "it names no checkpoint",
                f"give a path, or null to start from initializers: ++{key}.checkpoint=null",
            )
        )
    if not scaffold.state:
        problems.append(
            Problem(
                f"{key}.state is empty",
                "its checkpoint would bring nothing",
                f"to initialise the scaffold: ++{key}.checkpoint=null",
                tuple(each.value for each in StateChoice),
            )
        )
    if scaffold.use_ema and StateChoice.weights not in scaffold.state:
        problems.append(
            Problem(
                f"{key}.use_ema is true, but its state is without weights",
                "the moving averages are restored as the weights",
                f"add weights to {key}.state, or set ++{key}.use_ema=false",
            )
        )
    return problems


def _can_be_averaged(average: object) -> bool:
    if isinstance(average, list):
        kinds = {type(each) for each in average}
        return bool(average) and kinds <= {str, int}
    return (
        isinstance(average, str) and re.fullmatch(r"\s*last\s+0*[1-9]\d*\s*", average) is not None
    )


def _transposes(name: str, scaffold: ScaffoldConfig) -> list[Problem]:
    return [
        Problem(
            f"scaffolds.{name}.transpose: {pattern!r} has the axes {axes}",
            f"it must hold each of 0 to {max(len(axes) - 1, 0)} once",
            "for a dense kernel [1, 0], for an OIHW convolution kernel [2, 3, 1, 0]",
        )
        for pattern, axes in scaffold.transpose.items()
        if sorted(axes) != list(range(len(axes))) or not axes
    ]
