"""Checks a composed configuration as a whole and reports every problem at once.

The rules of single keys stand beside their fields in `schema`. This module has the rules that join
several keys, and those for the contents of open mappings and for `graph` and `model_fn`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.choices import Goal, Mode
from runner.config.composition import reporting_composition
from runner.config.conditions import Setup, conflict_problems
from runner.config.conflicts import IN_A_CONFIGURATION
from runner.config.groups import group_of, misplaced
from runner.config.instantiation import DEFAULT, register_resolvers
from runner.config.key_problems import (
    epoch_count_problems,
    merged,
    misfit,
    rule_problems,
    unknown_key,
    unresolved,
)
from runner.config.keys import flatten, keys, misfits, target_nodes, unknown_keys
from runner.config.masking import remember_typed
from runner.config.objective import metric_names, objective_problem
from runner.config.scaffold_reading import read_scaffolds
from runner.config.schema import DevicesConfig, RunConfig, to_compose
from runner.config.training_schema import implied_goal
from runner.errors import ConfigError, Problem, ranked

DTYPE_POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
# The modes that read a run's checkpoint.
OF_A_RUN = (Mode.evaluate, Mode.predict, Mode.export)
_INPUTS = ("train", "validation", "test", "serving")
_PARTS = ("data", "model", "loss", "metrics", "optimizer")


def validate(config: DictConfig | Mapping[str, Any], experiments: Sequence[str] = ()) -> RunConfig:
    """Returns the typed configuration, with `scaffolds` as a dict of `ScaffoldConfig`.

    Args:
      config: a composed configuration, or any mapping with its keys.
      experiments: the names that `+experiment=` accepts, for the messages.

    Raises:
      ConfigError: with every problem.
    """
    config = _complete(config)
    _drop_default_optimizer(config)
    _empty_parts(config)
    if OmegaConf.is_missing(config, "name"):
        raise ConfigError(no_experiment(experiments, config.mode))
    try:
        _count_steps(config)
        missing = sorted(OmegaConf.missing_keys(config))
        resolved: Any = OmegaConf.to_container(config, resolve=True)
        remember_typed(OmegaConf.to_container(config, resolve=False), resolved)
    except OmegaConfBaseException as error:
        plain: Any = OmegaConf.to_container(config, resolve=False)
        raise ConfigError(unresolved(error, flatten(plain))) from error
    problems = [
        Problem(f"{key} has no value", "every run needs it", "set it in the experiment's file")
        for key in missing
    ]
    problems += [unknown_key(key) for key in unknown_keys(resolved, RunConfig)]
    problems += _target_problems(resolved)
    problems += rule_problems(resolved, RunConfig)
    devices, unfit_devices = _read_devices(resolved["devices"])
    problems += unfit_devices
    scaffolds, scaffold_problems = read_scaffolds(resolved["scaffolds"])
    problems += scaffold_problems
    problems += _model_problems(resolved)
    problems += _objective_problems(resolved)
    problems += _epoch_problems(config, resolved)
    problems += _input_fn_problems(resolved)
    setup = Setup({**resolved, "scaffolds": scaffolds, "devices": devices})
    problems += conflict_problems(IN_A_CONFIGURATION, setup)
    if problems:
        raise ConfigError(*problems)
    objects: Any = OmegaConf.to_object(config)
    typed: RunConfig = objects
    typed.scaffolds, typed.devices = scaffolds, devices
    typed.train.goal = typed.train.direction
    return typed


def no_experiment(experiments: Sequence[str], mode: Mode) -> Problem:
    """Returns the problem of a command that names no experiment."""
    remedy = "name one by +experiment=NAME"
    if mode in OF_A_RUN:
        remedy += ", or one run by run_dir=runs/NAME/001"
    return Problem(
        "no experiment is named",
        "the configuration has no `name`; an experiment's file sets it",
        remedy,
        tuple(sorted(experiments)),
    )


def is_from_run_dir(command: DictConfig) -> bool:
    """Whether a composed command names the run to evaluate or export instead of an experiment."""
    if command.mode not in OF_A_RUN:
        return False
    try:
        return OmegaConf.is_missing(command, "name") and bool(command.run_dir)
    except OmegaConfBaseException:  # The default contains the missing name.
        return False


def _complete(config: DictConfig | Mapping[str, Any]) -> DictConfig:
    """Returns a copy over the schema, with its defaults for keys that are absent or deleted."""
    completed: Any = copy.deepcopy(config)
    if OmegaConf.get_type(config) is not RunConfig:
        plain: Any = OmegaConf.to_container(config) if OmegaConf.is_config(config) else config
        if problems := [misfit(key, value) for key, value in misfits(plain, RunConfig)]:
            raise ConfigError(*problems)
        register_resolvers()
        with reporting_composition():
            silent: dict[str, Any] = {} if "optimizer" in config else {"optimizer": {}}
            completed = OmegaConf.merge(OmegaConf.structured(to_compose()), silent, completed)
    OmegaConf.set_struct(completed, False)
    deleted = {field.name for field in fields(RunConfig)} - set(completed)
    if deleted:
        defaults = dict(OmegaConf.structured(to_compose()).items_ex(resolve=False))
        for name in deleted:
            completed[name] = defaults[name]
    whole: DictConfig = completed
    return whole


def _count_steps(config: DictConfig) -> None:
    """Sets `train.steps` where the number of epochs and their length decide it."""
    train = config.train
    if train.epochs and train.steps_per_epoch:
        train.steps = max(train.epochs - train.initial_epoch, 1) * train.steps_per_epoch


def _empty_parts(config: DictConfig) -> None:
    """Empties the keys that `graph` or `model_fn` replaces, unless the experiment sets them."""
    if config.get("graph") is None and config.get("model_fn") is None:
        return
    for key in ("data", "model", "loss", "optimizer"):
        if OmegaConf.is_missing(config, key):
            config[key] = {}


def _drop_default_optimizer(config: DictConfig) -> None:
    """Deletes what no one has chosen, so that a model's own optimizer is not taken for replaced."""
    if OmegaConf.is_missing(config, "optimizer"):
        return
    plain: Any = OmegaConf.to_container(config.optimizer, resolve=False)
    for key, value in plain.items():
        if str(value).startswith(f"${{{DEFAULT}:"):
            del config.optimizer[key]


def _target_problems(resolved: Mapping[str, Any]) -> Iterator[Problem]:
    user_graph = any(resolved[key] is not None for key in ("graph", "model_fn"))
    for key, node, target in target_nodes(resolved, RunConfig):
        # A user's graph needs none of its parts, and a compiled model has an optimizer.
        optional = key == "optimizer" or (user_graph and key in _PARTS)
        if not target.by_name and (node in (None, "???") or (optional and not node)):
            continue
        if target.measure:
            yield from _measure_problems(key, node)
        elif isinstance(node, str) and group_of(key):
            yield misplaced(key, node)
        elif not isinstance(node, Mapping) or ("_target_" not in node and key != "optimizer"):
            yield _no_target(key)


def _measure_problems(key: str, node: Any) -> Iterator[Problem]:
    """Checks a loss or a metric: a name, a target, or one of these for each output."""
    if node and isinstance(node, Mapping) and "_target_" not in node:
        for name, item in node.items():
            yield from _measure_problems(f"{key}.{name}", item)
    elif isinstance(node, list):
        for index, item in enumerate(node):
            yield from _measure_problems(f"{key}.{index}", item)
    elif not node or not isinstance(node, str | Mapping):
        yield _no_target(key, ", or be a name that Keras knows")


def _no_target(key: str, alternative: str = "") -> Problem:
    return Problem(
        f"{key} has no _target_",
        f"it must name the class or function to call{alternative}",
        f"give {key} a `_target_: package.module.Name`",
    )


def _read_devices(value: Any) -> tuple[DevicesConfig, list[Problem]]:
    """Returns the devices of a configuration, from a mapping or its short form, and its problems.

    Args:
      value: plain values, such as 2, `all`, `[0, 1]`, `{"count": 2}` or None for the default; or a
        `DevicesConfig`.
    """
    if value is None:
        return DevicesConfig(), []
    if isinstance(value, DevicesConfig):
        value = asdict(value)
    problems: list[Problem] = []
    if not isinstance(value, Mapping):
        value = {"count": value}
        problems += [
            replace(problem, state=problem.state.replace("devices.count", "devices"))
            for problem in rule_problems(value, DevicesConfig, "devices.")
        ]
    elif value and value.keys() <= {*keys(DevicesConfig)} - {"count"}:
        problems.append(
            Problem(
                f"devices.{next(iter(value))} is set without devices.count",
                "an override of it replaces the short form of a file, such as `devices: 2`",
                "add devices.count=2, or the number of devices you want",
            )
        )
    valid = {key: item for key, item in value.items() if key in keys(DevicesConfig)}
    typed, unfit = merged(DevicesConfig, valid, "devices")
    devices: Any = OmegaConf.to_object(typed)
    return devices, problems + unfit


def _model_problems(resolved: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks the keys of `model` that the runner reads itself."""
    model = resolved["model"] if isinstance(resolved["model"], Mapping) else {}
    if not isinstance(model.get("jit_compile", False), bool):
        yield Problem(
            f"model.jit_compile is {model['jit_compile']!r}",
            "it must be true or false",
            choices=("true", "false"),
        )
    policy = model.get("dtype_policy", "float32")
    if policy not in DTYPE_POLICIES:
        yield Problem(
            f"model.dtype_policy is {policy!r}",
            "it must be a policy of Keras that keeps weights in float32",
            choices=ranked(str(policy), DTYPE_POLICIES),
        )


def _objective_problems(resolved: Mapping[str, Any]) -> Iterator[Problem]:
    objective = resolved["train"]["objective"]
    names = metric_names(resolved)
    unknown = [] if names is None else list(objective_problem(objective, names))
    yield from unknown
    if not unknown and resolved["train"]["goal"] is None and implied_goal(objective) is None:
        yield Problem(
            f"train.objective is {objective!r}, and train.goal is not set",
            "the name does not say whether a smaller or a larger value is better",
            "set train.goal",
            tuple(Goal.__members__),
        )


def _epoch_problems(config: DictConfig, resolved: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields the problems of epochs, and of what their number decides."""
    train = resolved["train"]
    yield from epoch_count_problems(train, counted=bool(resolved["callbacks"]))
    if train["epochs"] is None or train["steps_per_epoch"] is not None:
        return
    unresolved: Any = OmegaConf.to_container(config, resolve=False)
    for key, value in flatten(unresolved).items():
        if isinstance(value, str) and "${train.steps}" in value:
            cause = "train.epochs decides the number of steps once the data are built"
            yield Problem(f"{key} is {value}", cause, "set train.steps_per_epoch")


def _input_fn_problems(resolved: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields the `input_fns` that a `model_fn` lacks or does not know."""
    if resolved["model_fn"] is None:
        return
    inputs = resolved["input_fns"]
    for key in inputs:
        if key not in _INPUTS:
            yield Problem(
                f"input_fns.{key} is not known",
                "an input_fn is for one split, or for what is exported",
                choices=ranked(key, _INPUTS),
            )
    for key in ("train", "validation"):
        if key not in inputs:
            yield Problem(
                f"input_fns.{key} is missing",
                "training reads the input of train, and evaluations read the input of validation",
                f"give input_fns.{key} the `_target_` of an input_fn",
            )
