"""Reads scaffolds, and the rules for a warm start as a whole, and reports every problem."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from runner.config.choices import StateClass
from runner.config.key_problems import merged, rule_problems
from runner.config.schema import RestorationConfig, ScaffoldConfig
from runner.errors import Problem


def read_scaffolds(value: Any) -> tuple[dict[str, ScaffoldConfig], list[Problem]]:
    """Reads the mapping or the list of named entries; order is the order of application.

    Args:
      value: plain values, or `ScaffoldConfig`s by name.
    """
    problems: list[Problem] = []
    named: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        named = [(str(name), entry) for name, entry in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, entry in enumerate(value):
            if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
                rest = {key: item for key, item in entry.items() if key != "name"}
                named.append((entry["name"], rest))
            else:
                problems.append(
                    Problem(
                        f"scaffolds.{index} has no name",
                        "each entry of a list of scaffolds is a mapping with a `name`",
                        "add `name: ...`, or write scaffolds as a mapping name -> scaffold",
                    )
                )
    elif value is not None:
        problems.append(
            Problem(
                f"scaffolds is {value!r}",
                "it must be a mapping name -> scaffold, or a list of entries with a `name`",
            )
        )
    scaffolds: dict[str, ScaffoldConfig] = {}
    for name, entry in named:
        if name in scaffolds:
            problems.append(Problem(f"two scaffolds are named {name!r}", "names must differ"))
            continue
        scaffolds[name], more = _scaffold(name, entry)
        problems += more
    return scaffolds, problems


# Key of a scaffold without a default -> why it needs a value, and a remedy.
_NEEDED = {
    "variables.include": (
        "a scaffold names the variables it owns",
        'for example {prefix}.variables.include=["{name}/*"]',
    ),
    "vocabulary": (
        "rows are moved from a token's place in the old file to its place in the new one",
        "give both files, `old` and `new`, one token a line",
    ),
}


def _scaffold(name: str, entry: Any) -> tuple[ScaffoldConfig, list[Problem]]:
    prefix = f"scaffolds.{name}"
    typed, problems = merged(ScaffoldConfig, _with_strings(entry), prefix)
    for key in sorted(OmegaConf.missing_keys(typed)) if not problems else ():
        cause, remedy = _NEEDED.get(key) or _NEEDED[key.partition(".")[0]]
        remedy = remedy.format(prefix=prefix, name=name)
        problems.append(Problem(f"{prefix}.{key} has no value", cause, remedy))
    if problems:
        return ScaffoldConfig(), problems
    plain: Any = OmegaConf.to_container(typed, enum_to_str=True)
    scaffold: ScaffoldConfig = OmegaConf.to_object(typed)  # type: ignore[assignment]
    return scaffold, [
        *rule_problems(plain, ScaffoldConfig, f"{prefix}."),
        *_scaffold_problems(prefix, scaffold),
    ]


def _with_strings(value: Any) -> Any:
    """Returns plain values with strings for the paths that a program gives as other objects."""
    if isinstance(value, dict):
        return {key: _with_strings(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_strings(item) for item in value]
    return str(os.fsdecode(value)) if isinstance(value, str | bytes | os.PathLike) else value


def read_restoration(value: Any) -> tuple[RestorationConfig, list[Problem]]:
    """Reads the rules for a warm start as a whole: a mapping of them, or a `RestorationConfig`."""
    typed, problems = merged(RestorationConfig, value, "restoration")
    restoration: RestorationConfig = OmegaConf.to_object(typed)  # type: ignore[assignment]
    return restoration, problems


def _scaffold_problems(key: str, scaffold: ScaffoldConfig) -> Iterator[Problem]:
    scheduled = ["freeze_until_step"] * (scaffold.freeze_until_step > 0)
    scheduled += ["learning_rate_multiplier"] * (scaffold.learning_rate_multiplier != 1.0)
    if scheduled and not scaffold.trainable:
        yield Problem(
            f"{key} is not trainable, but sets {' and '.join(scheduled)}",
            "variables that never train have no schedule",
            f"set ++{key}.trainable=true, or delete the schedule",
        )
    if scaffold.average is not None and scaffold.which not in (None, "latest"):
        yield Problem(
            f"{key} asks for which={scaffold.which} and for an average",
            "`which` chooses one checkpoint, `average` takes several",
            "delete one of the two; a list may hold steps, `best` and `latest`",
        )
    if scaffold.use_ema and scaffold.state and StateClass.weights not in scaffold.state:
        yield Problem(
            f"{key}.use_ema is true, but its state is without weights",
            "the moving averages are restored as the weights",
            f"add weights to {key}.state, or set ++{key}.use_ema=false",
        )
