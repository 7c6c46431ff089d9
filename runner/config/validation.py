"""Checks a composed configuration as a whole and reports every problem at once.

The rules of single keys stand beside their fields in `schema`. Here are those of several keys, of
the contents of open mappings, and of a graph of one's own (`graph` or `model_fn`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from numbers import Real
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.config.choices import MLFLOW_SCHEMES, SCAFFOLDS, EvaluatedSplit, Mode, rule_problems
from runner.config.composition import shipped
from runner.config.key_problems import unknown_key, unresolved
from runner.config.keys import unknown_keys
from runner.config.masking import flatten
from runner.config.scaffold_reading import read_scaffolds
from runner.config.schema import RunConfig, ScaffoldConfig, TrainConfig
from runner.errors import ConfigError, Problem, ranked

TARGETS = ("data", "model", "optimizer")
DTYPE_POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
_INPUTS = ("train", "validation", "test", "serving")
_PARTS = ("data", "model", "loss", "metrics", "optimizer")
# What the runner does in the update of a graph that it builds.
_IN_THE_UPDATE = ("accumulate", "clip", "ema_decay", "evaluate_ema")
_IN_THE_UPDATE_OF_A_PART = ("trainable", "freeze_until_step", "learning_rate_multiplier")


def validate(config: DictConfig, experiments: Sequence[str] = ()) -> RunConfig:
    """Returns the typed configuration, with `scaffolds` as a dict of `ScaffoldConfig`.

    `experiments` are the names that `+experiment=` accepts, for the messages.

    Raises:
      ConfigError: with every problem found.
      TypeError: when the configuration is not composed over `RunConfig`.
    """
    config = _complete(config)
    _without_parts(config)
    if OmegaConf.is_missing(config, "name"):
        raise ConfigError(no_experiment(experiments, config.mode))
    try:
        missing = sorted(OmegaConf.missing_keys(config))
        resolved: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        known: Any = OmegaConf.to_container(config, resolve=False)
        raise ConfigError(unresolved(error, flatten(known))) from error
    problems = [
        Problem(f"{key} has no value", "every run needs it", "set it in the experiment's file")
        for key in missing
    ]
    problems += [unknown_key(key) for key in unknown_keys(resolved, RunConfig)]
    problems += _target_problems(resolved)
    problems += rule_problems(resolved, RunConfig)
    scaffolds, scaffold_problems = read_scaffolds(resolved["scaffolds"])
    problems += scaffold_problems
    problems += _open_mapping_problems(resolved)
    problems += _cross_problems(resolved, scaffolds)
    problems += _own_graph_problems(resolved, scaffolds)
    if problems:
        raise ConfigError(*problems)
    typed = OmegaConf.to_object(config)
    if not isinstance(typed, RunConfig):
        raise TypeError(f"the configuration is not composed over RunConfig but {type(typed)}")
    typed.scaffolds = scaffolds
    return typed


def no_experiment(experiments: Sequence[str], mode: Mode) -> Problem:
    """Returns the problem of a command that names no experiment."""
    by_folder = mode in (Mode.evaluate, Mode.export)
    return Problem(
        "no experiment is named",
        "the configuration has no `name`; an experiment's file sets it",
        "python -m runner +experiment=NAME"
        + "; or name one run by run_dir=runs/NAME/001" * by_folder,
        tuple(sorted(experiments)),
    )


def is_by_folder(command: DictConfig) -> bool:
    """Whether a composed command names a run to evaluate or export, and no experiment."""
    if command.mode not in (Mode.evaluate, Mode.export) or not OmegaConf.is_missing(
        command, "name"
    ):
        return False
    try:
        return bool(command.run_dir)
    except OmegaConfBaseException:  # The default, which is made of the missing name.
        return False


def _complete(config: DictConfig) -> DictConfig:
    """Returns a copy in which a key that the command line deleted has its default again."""
    completed = copy.deepcopy(config)
    OmegaConf.set_struct(completed, False)
    deleted = {each.name for each in fields(RunConfig)} - set(completed)
    if deleted:
        defaults = dict(OmegaConf.structured(RunConfig(scaffolds=None)).items_ex(resolve=False))
        for name in deleted:
            completed[name] = defaults[name]
    return completed


def _without_parts(config: DictConfig) -> None:
    """Empties the keys that a graph of one's own stands for, where they are not set."""
    if config.get("graph") is None and config.get("model_fn") is None:
        return
    # Every configuration is composed with the default optimizer.
    default = OmegaConf.load(shipped("conf") / "optimizer" / "adam.yaml")
    for key in ("data", "model", "loss", "optimizer"):
        if OmegaConf.is_missing(config, key) or config[key] == default:
            config[key] = {}


def _target_problems(resolved: Mapping[str, Any]) -> Iterator[Problem]:
    own = [key for key in ("graph", "model_fn") if resolved[key] is not None]
    # A graph of one's own needs none, and a compiled model has an optimizer.
    keys = [key for key in TARGETS if resolved[key] or not (own or key == "optimizer")]
    given = [(key, resolved[key]) for key in (*keys, *own) if resolved[key] != "???"]
    for group in ("hooks", "input_fns"):
        given += [(f"{group}.{key}", value) for key, value in resolved[group].items()]
    for group in ("metrics", "weighted_metrics"):
        for key, value in resolved[group].items():
            yield from _measure_problems(f"{group}.{key}", value)
    if resolved["loss"] not in (None, "???") and (resolved["loss"] or not own):
        yield from _measure_problems("loss", resolved["loss"])
    for key, value in given:
        if not isinstance(value, Mapping) or "_target_" not in value:
            yield _no_target(key)


def _measure_problems(key: str, value: Any) -> Iterator[Problem]:
    """Checks a loss or a metric: a name, a target, or for each output one of these."""
    if isinstance(value, Mapping) and "_target_" not in value and value:
        for name, each in value.items():
            yield from _measure_problems(f"{key}.{name}", each)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _measure_problems(f"{key}.{index}", each)
    elif not value or not isinstance(value, str | Mapping):
        yield _no_target(key, ", or be a name that Keras knows")


def _no_target(key: str, also: str = "") -> Problem:
    return Problem(
        f"{key} has no _target_",
        f"it must name the class or function to call{also}",
        f"give {key} a `_target_: package.module.Name`",
    )


def _open_mapping_problems(resolved: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks the keys that the runner reads of `optimizer`, `data` and `model`."""
    optimizer, data, model = (
        value if isinstance(value, Mapping) else {}
        for value in (resolved["optimizer"], resolved["data"], resolved["model"])
    )
    yield from rate_problems(optimizer)
    # A batch size that is not a number is between the configuration and the data's own class.
    size = data.get("batch_size")
    if isinstance(size, int | float) and size < 1:
        yield Problem(f"data.batch_size is {size!r}", "it must be at least 1")
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


def _cross_problems(
    resolved: Mapping[str, Any], scaffolds: Mapping[str, ScaffoldConfig]
) -> Iterator[Problem]:
    uri, objective = resolved["tracking"]["uri"], resolved["train"]["objective"]
    name, alias = resolved["export"]["register"], resolved["export"]["alias"]
    names = list(metric_names(resolved))
    # A model may have metrics of its own: the graph knows.
    problem = objective_problem(objective, ["loss", *names]) if names else None
    if problem is not None:
        yield problem
    if name is not None and (uri or "none").lower() == "none":
        yield Problem(
            f"export.register is {name!r}, and runs are not recorded in MLflow",
            "tracking.uri is null",
            "set tracking.uri to the store that the run is recorded in",
        )
    if name is not None and resolved["export"]["which"] == SCAFFOLDS:
        yield Problem(
            f"export.register is {name!r}, and export.which is {SCAFFOLDS}",
            "a registered model belongs to a run, and no run has these values",
            "delete export.register",
        )
    if alias is not None and name is None:
        yield Problem(
            f"export.alias is {alias!r}, but no model is registered",
            "an alias names a version of a registered model",
            "add export.register=NAME",
        )
    for scaffold, entry in scaffolds.items() if uri is None else ():
        averaged = entry.average if isinstance(entry.average, list) else []
        named = [("checkpoint", entry.checkpoint), *(("average", each) for each in averaged)]
        for key, each in named:
            if isinstance(each, str) and each.startswith(MLFLOW_SCHEMES):
                yield Problem(
                    f"scaffolds.{scaffold}.{key}: {each} is in MLflow, and tracking is off",
                    "tracking.uri is null, so there is no store to ask for it",
                    "set tracking.uri to the store that has it, or name a path",
                )


def _own_graph_problems(
    resolved: Mapping[str, Any], scaffolds: Mapping[str, ScaffoldConfig]
) -> Iterator[Problem]:
    """Yields what does not go with the `graph` or `model_fn` of a configuration, or needs one."""
    model_fn, inputs = resolved["model_fn"], resolved["input_fns"]
    own = [key for key in ("graph", "model_fn") if resolved[key] is not None]
    if len(own) == 2:
        yield Problem(
            "graph and model_fn are both set", "a run has one graph", "delete one of them"
        )
    if model_fn is None:
        for key in ("params", "input_fns"):
            if resolved[key]:
                yield Problem(f"{key} is set without model_fn", "nothing else reads it")
    for key in inputs:
        if key not in _INPUTS:
            yield Problem(
                f"input_fns.{key} is not known",
                "an input_fn is for one split, or for what is exported",
                choices=ranked(key, _INPUTS),
            )
    if model_fn is not None:
        for key in ("train", "validation"):
            if key not in inputs:
                yield Problem(
                    f"input_fns.{key} is missing",
                    "training reads the input of train, and is evaluated on that of validation",
                    f"give input_fns.{key} the `_target_` of an input_fn",
                )
    if own:
        yield from _unused_problems(own[0], resolved, scaffolds)


def _unused_problems(
    own: str, resolved: Mapping[str, Any], scaffolds: Mapping[str, ScaffoldConfig]
) -> Iterator[Problem]:
    cause = f"the {own} makes the whole graph, its update included"
    for key in _PARTS:
        if resolved[key]:
            remedy = f"delete {key}; its values belong into " + (
                "params" if own == "model_fn" else "the arguments of graph"
            )
            yield Problem(f"{key} is set beside {own}", cause, remedy)
    if resolved["evaluate"]["split"] is EvaluatedSplit.train:
        yield Problem(
            f"evaluate.split is train beside {own}",
            "in that mode it makes the training step",
            "evaluate.split=test, with an input for mode test that reads the training data once",
        )
    if resolved["cluster"]["synchronous"]:
        yield Problem(f"cluster.synchronous is set beside {own}", cause, "train asynchronously")
    standard = asdict(TrainConfig())
    for key in _IN_THE_UPDATE:
        if resolved["train"][key] != standard[key]:
            yield Problem(f"train.{key} is set beside {own}", cause, f"do it in the {own}")
    for name, scaffold in scaffolds.items():
        for key in _IN_THE_UPDATE_OF_A_PART:
            if getattr(scaffold, key) != getattr(ScaffoldConfig(), key):
                remedy = f"leave its variables out of the optimizer's var_list in the {own}"
                yield Problem(f"scaffolds.{name}.{key} is set beside {own}", cause, remedy)


def metric_names(config: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of the configured metrics, `OUTPUT_METRIC` for those of an output."""
    for group in ("metrics", "weighted_metrics"):
        for name, node in config[group].items():
            if isinstance(node, Mapping) and "_target_" not in node:
                yield from (f"{name}_{inner}" for inner in node)
            else:
                yield name
    if isinstance(config["loss"], Mapping) and "_target_" not in config["loss"]:
        yield from (f"{output}_loss" for output in config["loss"])


def objective_problem(objective: str, names: Sequence[str]) -> Problem | None:
    """Returns the problem of a `train.objective` that is not the name of a metric."""
    valid = [f"validation/{each}" for each in names]
    if objective in valid:
        return None
    return Problem(
        f"train.objective is {objective!r}",
        "no evaluation produces a metric of that name",
        "name one of the metrics, or add it to `metrics`",
        ranked(objective, valid),
    )


KEY = "optimizer.learning_rate"


def rate_problems(optimizer: Mapping[str, Any]) -> list[Problem]:
    """Returns a problem where the optimizer's `learning_rate` is neither a number nor a schedule.

    One that is absent or null is accepted. A schedule's own arguments are not checked.
    """
    node = optimizer.get("learning_rate")
    if node in (None, "???"):  # A missing one is a problem of its own.
        return []
    is_number = isinstance(node, Real) and not isinstance(node, bool)
    is_schedule = isinstance(node, Mapping) and "_target_" in node
    return [] if is_number or is_schedule else [no_rate(node)]


def no_rate(node: Any) -> Problem:
    """Returns the problem of a learning rate that is neither a number nor a schedule."""
    return Problem(
        f"{KEY} is {node!r}",
        "it is neither a number nor a schedule",
        "for example 1e-3, or schedule@optimizer.learning_rate=cosine",
    )
