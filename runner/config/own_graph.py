"""Checks a configuration with a graph of its own, by `graph` or `model_fn`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runner.config.choices import EvaluatedSplit
from runner.config.schema import RunConfig, ScaffoldConfig, TrainConfig
from runner.errors import Problem, ranked

# The optimizer with which every configuration is composed: conf/optimizer/adam.yaml.
SHIPPED = {
    "_target_": "tensorflow.compat.v1.train.AdamOptimizer",
    "learning_rate": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "epsilon": 1e-8,
}
INPUTS = ("train", "validation", "test", "serving")
_PARTS = ("data", "model", "loss", "metrics", "optimizer")
# What the runner does in the update of a graph that it builds.
_IN_THE_UPDATE = ("accumulate", "clip", "ema_decay", "evaluate_ema")
_IN_THE_UPDATE_OF_A_PART = ("trainable", "freeze_until_step", "learning_rate_multiplier")


def is_own_graph(config: RunConfig) -> bool:
    """Whether a configuration brings a graph of its own."""
    return config.graph is not None or config.model_fn is not None


def without_parts(config: DictConfig) -> None:
    """Empties the keys that a graph of one's own stands for, where they are not set."""
    if config.get("graph") is None and config.get("model_fn") is None:
        return
    for key in ("data", "model", "loss", "optimizer"):
        if OmegaConf.is_missing(config, key) or config[key] == SHIPPED:
            config[key] = {}


def own_graph_problems(
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
        if key not in INPUTS:
            yield Problem(
                f"input_fns.{key} is not known",
                "an input_fn is for one split, or for what is exported",
                choices=ranked(key, INPUTS),
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
    standard = OmegaConf.to_container(OmegaConf.structured(TrainConfig()), enum_to_str=False)
    for key in _IN_THE_UPDATE:
        if resolved["train"][key] != dict(standard)[key]:  # type: ignore[arg-type]
            yield Problem(f"train.{key} is set beside {own}", cause, f"do it in the {own}")
    for name, scaffold in scaffolds.items():
        for key in _IN_THE_UPDATE_OF_A_PART:
            if getattr(scaffold, key) != getattr(ScaffoldConfig(), key):
                remedy = f"leave its variables out of the optimizer's var_list in the {own}"
                yield Problem(f"scaffolds.{name}.{key} is set beside {own}", cause, remedy)
