"""Hooks of the configuration, and what `${graph:NAME}` and `${run:NAME}` in them stand for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import tensorflow as tf

from runner.config.instantiation import References, build_target, check_target, references
from runner.errors import ConfigError, Problem
from runner.graph.built_graph import Training


def graph_names(variables: Mapping[str, tf.Variable], training: Training) -> dict[str, Any]:
    """Returns name -> tensor, operation or variable.

    These are `loss` and the other metrics of the step, `metrics` (all of them by name),
    `learning_rate`, `step` (after the train op), `global_step`, `train_op`, `input_seconds`, and
    the variables.
    """
    metrics = dict(training.values)
    if training.learning_rate is not None:
        metrics.setdefault("learning_rate", training.learning_rate)
    return {
        **variables,
        **metrics,
        "metrics": metrics,
        "step": training.step,
        "train_op": training.train_op,
        "input_seconds": training.input_seconds,
    }


def graph_references(
    graph: tf.Graph, variables: Mapping[str, tf.Variable], training: Training
) -> References:
    """Returns what `${graph:NAME}` stands for: see `graph_names`, or TensorFlow's own name."""
    return References({"graph": graph_names(variables, training)}, partial(_find, graph))


def _find(graph: tf.Graph, name: str) -> Any:
    """Returns a tensor (`name:0`) or an operation (`name`) by TensorFlow's own name, or None."""
    try:
        return graph.as_graph_element(name)
    except (KeyError, ValueError):
        return None


_Hook: TypeAlias = tf.compat.v1.train.SessionRunHook

# `directory` and `checkpoints` are paths; `evaluation` is the hook that evaluates; `record` takes
# metric name -> value and the step; `saver` keeps all its checkpoints, apart from the run's own.
RUN_NAMES = ("directory", "checkpoints", "evaluation", "record", "saver")
# The constructors of our own hooks check their arguments and do nothing with what the run provides.
_OWN_HOOKS = "runner.hooks."
_STAND_INS = {
    **dict.fromkeys(RUN_NAMES, "known later"),
    "evaluation": SimpleNamespace(metrics=()),
}


def first_hooks(nodes: Mapping[str, Any], graph: References) -> dict[str, _Hook | None]:
    """Builds the hooks that need only the graph, and checks the others.

    Returns:
      Name -> hook, or None for one that refers to the run.

    Raises:
      ConfigError: when a target is wrong, or a reference stands for nothing; and when a hook, of
        those that refer to the run one of ours, refuses its arguments.
    """
    checking = graph.also("run", dict.fromkeys(RUN_NAMES, "known later"))
    hooks: dict[str, _Hook | None] = {}
    for name, node in nodes.items():
        check_target(f"hooks.{name}", node, checking)
        refers = any(kind == "run" for _, kind, _ in references("", node))
        hooks[name] = None if refers else build_hook(name, node, graph)
        if refers and str(node["_target_"]).startswith(_OWN_HOOKS):
            build_hook(name, node, graph.also("run", _STAND_INS))  # Checks its arguments.
    return hooks


def build_hook(name: str, node: Mapping[str, Any], known: References) -> _Hook:
    """Builds the hook `hooks.NAME`.

    Raises:
      ConfigError: when its target is wrong or is no hook, or a reference stands for nothing.
    """
    hook = build_target(f"hooks.{name}", node, known)
    if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
        raise ConfigError(
            Problem(
                f"hooks.{name}: {node['_target_']} is not a tf.compat.v1.train.SessionRunHook",
                "the session calls its begin, before_run, after_run and end",
                "derive it from tf.compat.v1.train.SessionRunHook",
            )
        )
    return hook
