"""Checks a composed configuration as a whole and reports every problem at once."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Real
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config import lookup
from runner.config.hydra_errors import bad_value, unknown_key, unresolved
from runner.config.scaffold_rules import scaffold_problems, unset_vocabularies, untracked_sources
from runner.config.schedule import as_schedule
from runner.config.schema import RunConfig, ScaffoldConfig
from runner.errors import ConfigError, Problem, ranked

TARGETS = ("data", "model", "loss", "optimizer")
POSITIVE = ("steps", "keep_checkpoints", "accumulate")
SCHEDULES = ("log_every", "evaluate_every", "checkpoint_every")
DTYPE_POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def validate(config: DictConfig, experiments: Sequence[str] = ()) -> RunConfig:
    """Returns the typed configuration, with `scaffolds` as a dict of `ScaffoldConfig`.

    Args:
      config: the composed configuration, over the schema `RunConfig`.
      experiments: the names that `+experiment=` accepts, for the messages.

    Raises:
      ConfigError: with every problem found.
    """
    config = _complete(config)
    if OmegaConf.is_missing(config, "name"):
        raise ConfigError(no_experiment(experiments))
    try:
        missing = sorted(OmegaConf.missing_keys(config))
        resolved: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        known = _leaves(OmegaConf.to_container(config, resolve=False))
        raise ConfigError(unresolved(error, known)) from error
    problems = [_missing(key) for key in missing]
    problems += [unknown_key(key) for key in lookup.unknown_keys(resolved)]
    problems += _target_problems(resolved)
    if isinstance(resolved["optimizer"], Mapping):
        problems += rate_problems(resolved["optimizer"])
    problems += _number_problems(resolved)
    problems += _batch_problems(resolved["data"])
    problems += _model_problems(resolved)
    scaffolds, scaffold_problems = _scaffolds(resolved["scaffolds"])
    problems += scaffold_problems
    if resolved["tracking"]["uri"] is None:
        problems += [each for item in scaffolds.items() for each in untracked_sources(*item)]
    problems += _objective_problems(resolved)
    problems += _export_problems(resolved)
    if problems:
        raise ConfigError(*problems)
    typed = OmegaConf.to_object(config)
    if not isinstance(typed, RunConfig):
        raise TypeError(f"the configuration is not composed over RunConfig but {type(typed)}")
    typed.scaffolds = scaffolds
    return typed


def no_experiment(experiments: Sequence[str]) -> Problem:
    """The problem of a command that names no experiment."""
    return Problem(
        "no experiment is named",
        "the configuration has no `name`; an experiment's file sets it",
        "python -m runner +experiment=NAME",
        tuple(sorted(experiments)),
    )


def _complete(config: DictConfig) -> DictConfig:
    """Returns a copy in which a key that the command line deleted has its default again."""
    completed = copy.deepcopy(config)
    OmegaConf.set_struct(completed, False)
    names = [each.name for each in fields(RunConfig)]
    deleted = [
        name
        for name in names
        if name not in completed and not OmegaConf.is_missing(completed, name)
    ]
    if deleted:
        defaults = dict(OmegaConf.structured(RunConfig(scaffolds=None)).items_ex(resolve=False))
        for name in deleted:
            completed[name] = defaults[name]
    return completed


def _leaves(value: Any, prefix: str = "") -> list[str]:
    """Returns the dotted keys of a nested mapping's leaves."""
    if not isinstance(value, Mapping):
        return [prefix]
    return [
        leaf
        for key, item in value.items()
        for leaf in _leaves(item, f"{prefix}.{key}" if prefix else str(key))
    ]


def _missing(key: str) -> Problem:
    return Problem(f"{key} has no value", "every run needs it", "set it in the experiment's file")


def _target_problems(resolved: Mapping[str, Any]) -> list[Problem]:
    entries = [(key, resolved[key]) for key in TARGETS if resolved[key] != "???"]
    for group in ("metrics", "hooks"):
        entries += [(f"{group}.{key}", value) for key, value in resolved[group].items()]
    return [
        Problem(
            f"{key} has no _target_",
            "it must name the class or function to call",
            f"give {key} a `_target_: package.module.Name`",
        )
        for key, value in entries
        if not isinstance(value, Mapping) or "_target_" not in value
    ]


def _number_problems(resolved: Mapping[str, Any]) -> list[Problem]:
    train = resolved["train"]
    problems = [
        Problem(f"train.{key} is {train[key]}", "it must be at least 1")
        for key in POSITIVE
        if train[key] < 1
    ]
    if not str(resolved["name"]).strip():
        problems.append(Problem("name is empty", "runs are filed under it", "name=my_experiment"))
    if not 0 <= resolved["seed"] < 2**32:
        problems.append(Problem(f"seed is {resolved['seed']}", "it must be from 0 to 4294967295"))
    for key in SCHEDULES:
        try:
            as_schedule(train[key])
        except ValueError as error:
            problems.append(Problem(f"train.{key} is {train[key]}", str(error)))
    problems += [
        Problem(f"train.clip.{key} is {bound:g}", "it must be above 0", "null is no bound")
        for key, bound in train["clip"].items()
        if bound is not None and not bound > 0
    ]
    decay, non_finite = train["ema_decay"], train["non_finite"]
    if decay is not None and not 0 < decay < 1:
        problems.append(
            Problem(f"train.ema_decay is {decay:g}", "it must be between 0 and 1", "null is none")
        )
    problems += [
        Problem(f"session.{key} is {resolved['session'][key]}", f"it must be at least {least}")
        for key, least in (("intra_op_threads", 0), ("inter_op_threads", -1))
        if resolved["session"][key] < least
    ]
    if non_finite["rollbacks"] < 1:
        problems.append(
            Problem(
                f"train.non_finite.rollbacks is {non_finite['rollbacks']}", "it must be at least 1"
            )
        )
    if resolved["sweep"]["retries"] < 0:
        problems.append(
            Problem(f"sweep.retries is {resolved['sweep']['retries']}", "it must be at least 0")
        )
    scale = non_finite["learning_rate_scale"]
    if not 0 < scale <= 1:
        problems.append(
            Problem(
                f"train.non_finite.learning_rate_scale is {scale:g}",
                "it must be above 0 and at most 1",
            )
        )
    return problems


def _batch_problems(data: Any) -> list[Problem]:
    """Returns a problem where `data.batch_size` is a number of which there is no batch.

    Anything but a number is between the configuration and the data's own class.
    """
    size = data.get("batch_size") if isinstance(data, Mapping) else None
    if not isinstance(size, int | float) or size >= 1:
        return []
    return [Problem(f"data.batch_size is {size!r}", "it must be at least 1")]


def _model_problems(resolved: Mapping[str, Any]) -> list[Problem]:
    model = resolved["model"]
    if not isinstance(model, Mapping):
        return []
    problems = []
    if not isinstance(model.get("jit_compile", False), bool):
        problems.append(
            Problem(
                f"model.jit_compile is {model['jit_compile']!r}",
                "it must be true or false",
                choices=("true", "false"),
            )
        )
    policy = model.get("dtype_policy", "float32")
    if policy not in DTYPE_POLICIES:
        problems.append(
            Problem(
                f"model.dtype_policy is {policy!r}",
                "it must be a policy of Keras that keeps weights in float32",
                choices=ranked(str(policy), DTYPE_POLICIES),
            )
        )
    return problems


def _objective_problems(resolved: Mapping[str, Any]) -> list[Problem]:
    objective = resolved["train"]["objective"]
    valid = [f"validation/{name}" for name in ("loss", *resolved["metrics"])]
    if objective in valid:
        return []
    return [
        Problem(
            f"train.objective is {objective!r}",
            "no evaluation produces a metric of that name",
            "name one of the metrics, or add it to `metrics`",
            ranked(objective, valid),
        )
    ]


def _export_problems(resolved: Mapping[str, Any]) -> list[Problem]:
    name, alias = resolved["export"]["register"], resolved["export"]["alias"]
    problems = []
    if name is not None and (not name.strip() or set(name) & set("/:'")):
        problems.append(
            Problem(f"export.register is {name!r}", "a model's name has no `/`, `:` or `'` in it")
        )
    if name is not None and (resolved["tracking"]["uri"] or "none").lower() == "none":
        problems.append(
            Problem(
                f"export.register is {name!r}, and runs are not recorded in MLflow",
                "tracking.uri is null",
                "set tracking.uri to the store that the run is recorded in",
            )
        )
    if alias is not None and name is None:
        problems.append(
            Problem(
                f"export.alias is {alias!r}, but no model is registered",
                "an alias names a version of a registered model",
                "add export.register=NAME",
            )
        )
    if alias is not None and not re.fullmatch(r"(?!(?i:latest|v\d+)$)[\w-]{1,255}", alias):
        problems.append(
            Problem(
                f"export.alias is {alias!r}",
                "it must be of letters, digits, `_` and `-`, and not `latest` or like `v1`",
            )
        )
    return problems


def _scaffolds(value: Any) -> tuple[dict[str, ScaffoldConfig], list[Problem]]:
    """Reads the mapping or the list of named entries; order is the order of application."""
    problems: list[Problem] = []
    entries: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        entries = [(str(name), entry) for name, entry in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, entry in enumerate(value):
            if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
                rest = {key: item for key, item in entry.items() if key != "name"}
                entries.append((entry["name"], rest))
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
    for name, entry in entries:
        if name in scaffolds:
            problems.append(Problem(f"two scaffolds are named {name!r}", "names must differ"))
            continue
        scaffold, found = _scaffold(name, entry)
        problems += found
        scaffolds[name] = scaffold
    return scaffolds, problems


def _scaffold(name: str, entry: Any) -> tuple[ScaffoldConfig, list[Problem]]:
    if not isinstance(entry, Mapping):
        return ScaffoldConfig(), [
            Problem(
                f"scaffolds.{name} is {entry!r}",
                "a scaffold is a mapping",
                choices=lookup.keys(ScaffoldConfig),
            )
        ]
    typed = OmegaConf.structured(ScaffoldConfig)
    problems = []
    for key, value in entry.items():
        try:
            typed = OmegaConf.merge(typed, {key: value})
        except OmegaConfBaseException as error:
            problems.append(_refused(f"scaffolds.{name}.{error.full_key or key}", error))
    if OmegaConf.is_missing(typed.variables, "include") and not problems:
        problems.append(
            Problem(
                f"scaffolds.{name}.variables.include has no value",
                "a scaffold names the variables it owns",
                f'for example scaffolds.{name}.variables.include=["{name}/*"]',
            )
        )
    problems += unset_vocabularies(name, entry)
    if problems:
        return ScaffoldConfig(), problems
    scaffold: ScaffoldConfig = OmegaConf.to_object(typed)  # type: ignore[assignment]
    return scaffold, scaffold_problems(name, scaffold)


def _refused(key: str, error: OmegaConfBaseException) -> Problem:
    if lookup.annotation(key) is None:
        return unknown_key(key)
    return bad_value(key, str(error).splitlines()[0])


KEY = "optimizer.learning_rate"


def rate_problems(optimizer: Mapping[str, Any]) -> list[Problem]:
    """Returns a problem where the optimizer's `learning_rate` is neither a number nor a schedule.

    None where it has no `learning_rate`, or null. A schedule's own arguments are not checked.

    Args:
      optimizer: the optimizer's configuration.
    """
    node = optimizer.get("learning_rate")
    if node in (None, "???"):  # One that is not set at all is a problem of its own.
        return []
    is_number = isinstance(node, Real) and not isinstance(node, bool)
    is_schedule = isinstance(node, Mapping) and "_target_" in node
    return [] if is_number or is_schedule else [no_rate(node)]


def no_rate(node: Any) -> Problem:
    """The problem of a learning rate that is none.

    Args:
      node: what the configuration says.
    """
    return Problem(
        f"{KEY} is {node!r}",
        "it is neither a number nor a schedule",
        "for example 1e-3, or schedule@optimizer.learning_rate=cosine",
    )
