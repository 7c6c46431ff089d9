"""Reads what a user writes of scaffolds and of a warm start as a whole, with every problem."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.choices import StateChoice, rule_problems
from runner.config.key_problems import bad_value, unknown_key
from runner.config.keys import annotation, keys
from runner.config.schema import RestorationConfig, RunConfig, ScaffoldConfig
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
        scaffolds[name], found = _scaffold(name, entry)
        problems += found
    return scaffolds, problems


def _scaffold(name: str, entry: Any) -> tuple[ScaffoldConfig, list[Problem]]:
    prefix = f"scaffolds.{name}"
    if isinstance(entry, ScaffoldConfig):
        entry = asdict(entry)
    if not isinstance(entry, Mapping):
        refused = Problem(
            f"{prefix} is {entry!r}", "a scaffold is a mapping", choices=keys(ScaffoldConfig)
        )
        return ScaffoldConfig(), [refused]
    typed, problems = _merged(ScaffoldConfig, entry, prefix)
    if not problems:
        problems = [
            Problem(
                f"{prefix}.{key} has no value",
                "a scaffold names the variables it owns",
                f'for example {prefix}.variables.include=["{name}/*"]',
            )
            if key == "variables.include"
            else Problem(
                f"{prefix}.{key} has no value",
                "rows are moved from a token's place in the old file to its place in the new one",
                "give both files, `old` and `new`, one token a line",
            )
            for key in sorted(OmegaConf.missing_keys(typed))
        ]
    if problems:
        return ScaffoldConfig(), problems
    plain: Any = OmegaConf.to_container(typed)
    scaffold: ScaffoldConfig = OmegaConf.to_object(typed)  # type: ignore[assignment]
    return scaffold, [
        *rule_problems(plain, ScaffoldConfig, f"{prefix}."),
        *_scaffold_problems(prefix, scaffold),
    ]


def read_restoration(value: Any) -> tuple[RestorationConfig, list[Problem]]:
    """Reads the rules for a warm start as a whole: a mapping of them, or a `RestorationConfig`."""
    entry = asdict(value) if isinstance(value, RestorationConfig) else value
    if not isinstance(entry, Mapping):
        refused = f"restoration is {entry!r}"
        return RestorationConfig(), [
            Problem(refused, "it is a mapping", choices=keys(RestorationConfig))
        ]
    typed, problems = _merged(RestorationConfig, entry, "restoration")
    restoration: RestorationConfig = OmegaConf.to_object(typed)  # type: ignore[assignment]
    return restoration, problems


# Making one takes longer than all else about a scaffold; merging copies it.
_structured: Callable[[Any], DictConfig] = cache(OmegaConf.structured)


def _merged(kind: Any, entry: Mapping[str, Any], prefix: str) -> tuple[DictConfig, list[Problem]]:
    """Merges plain values over a structured config; where some do not fit, finds all of these."""
    typed = _structured(kind)
    with contextlib.suppress(OmegaConfBaseException):
        return OmegaConf.merge(typed, entry), []  # type: ignore[return-value]
    problems = []
    for key, value in entry.items():
        try:
            typed = OmegaConf.merge(typed, {key: value})  # type: ignore[assignment]
        except OmegaConfBaseException as error:
            where = f"{prefix}.{error.full_key or key}"
            unknown = annotation(where, RunConfig) is None
            cause = str(error).splitlines()[0]
            problems.append(unknown_key(where) if unknown else bad_value(where, cause))
    return typed, problems


def _scaffold_problems(key: str, scaffold: ScaffoldConfig) -> Iterator[Problem]:
    scheduled = ["freeze_until_step"] * (scaffold.freeze_until_step > 0)
    scheduled += ["learning_rate_multiplier"] * (scaffold.learning_rate_multiplier != 1.0)
    if scheduled and not scaffold.trainable:
        yield Problem(
            f"{key} is not trainable, but sets {' and '.join(scheduled)}",
            "what never trains has no schedule",
            f"set ++{key}.trainable=true, or delete the schedule",
        )
    if scaffold.average is not None and scaffold.which not in (None, "latest"):
        yield Problem(
            f"{key} asks for which={scaffold.which} and for an average",
            "`which` chooses one checkpoint, `average` takes several",
            "delete one of the two; a list may hold steps, `best` and `latest`",
        )
    if scaffold.checkpoint is not None and not scaffold.checkpoint.strip() and not scaffold.average:
        yield Problem(
            f"{key}.checkpoint is empty",
            "it names no checkpoint",
            f"give a path, or null to start from initializers: ++{key}.checkpoint=null",
        )
    if scaffold.use_ema and scaffold.state and StateChoice.weights not in scaffold.state:
        yield Problem(
            f"{key}.use_ema is true, but its state is without weights",
            "the moving averages are restored as the weights",
            f"add weights to {key}.state, or set ++{key}.use_ema=false",
        )
