"""Hooks of the configuration, and what `${graph:NAME}` and `${run:NAME}` in them stand for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from runner.config.instantiation import References, build_target, check_target, locate_target
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
    """Returns the values of `${graph:NAME}`, by `graph_names` or by TensorFlow's own names."""
    return References({"graph": graph_names(variables, training)}, partial(_find, graph))


def _find(graph: tf.Graph, name: str) -> Any:
    """Returns a tensor (`name:0`) or an operation (`name`) by TensorFlow's own name, or None."""
    try:
        return graph.as_graph_element(name)
    except (KeyError, ValueError):
        return None


# `directory` and `checkpoints` are paths; `evaluation` is the hook that evaluates; `record` takes
# metric name -> value and the step; `saver` keeps all its checkpoints, apart from the run's.
RUN_NAMES = ("directory", "checkpoints", "evaluation", "record", "saver")
CALLBACK_NAMES = ("directory", "checkpoints", "record")


def check_hooks(nodes: Mapping[str, Any], graph: References) -> None:
    """Checks the hooks of the configuration before there is a run; builds none.

    Args:
      nodes: name -> entry of `hooks`.
      graph: see `graph_references`.

    Raises:
      ConfigError: when a target or an argument's name or type is wrong, a reference stands for
        nothing, or a target is a class of something else.
    """
    references = graph.also("run", {name: name for name in RUN_NAMES})
    for name, node in nodes.items():
        key = f"hooks.{name}"
        check_target(key, node, references)
        target = locate_target(key, node)
        if isinstance(target, type) and not issubclass(target, tf.compat.v1.train.SessionRunHook):
            raise ConfigError(_no_hook(key, node))


def check_callbacks(nodes: Mapping[str, Any], graph: References) -> None:
    """Checks the callbacks of the configuration as `check_hooks` does the hooks."""
    references = graph.also("run", {name: name for name in CALLBACK_NAMES})
    for name, node in nodes.items():
        key = f"callbacks.{name}"
        check_target(key, node, references)
        target = locate_target(key, node)
        if isinstance(target, type) and not issubclass(target, keras.callbacks.Callback):
            raise ConfigError(_no_callback(key, node))


def build_callback(name: str, node: Mapping[str, Any], references: References) -> Any:
    """Builds the callback `callbacks.NAME`; raises what `build_hook` does."""
    callback = build_target(f"callbacks.{name}", node, references)
    if not isinstance(callback, keras.callbacks.Callback):
        raise ConfigError(_no_callback(f"callbacks.{name}", node))
    return callback


def _no_callback(key: str, node: Mapping[str, Any]) -> Problem:
    return Problem(
        f"{key}: {node['_target_']} is not a keras.callbacks.Callback",
        "training calls its on_epoch_end and other methods",
        "derive it from keras.callbacks.Callback, or name a hook below `hooks`",
    )


def build_hook(name: str, node: Mapping[str, Any], references: References) -> Any:
    """Builds the hook `hooks.NAME`.

    Raises:
      ConfigError: when its target is wrong or is no hook, or a reference stands for nothing.
      UserCodeError: when its target raises another error than a ValueError or TypeError.
    """
    hook = build_target(f"hooks.{name}", node, references)
    if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
        raise ConfigError(_no_hook(f"hooks.{name}", node))
    return hook


def _no_hook(key: str, node: Mapping[str, Any]) -> Problem:
    return Problem(
        f"{key}: {node['_target_']} is not a tf.compat.v1.train.SessionRunHook",
        "the session calls its begin, before_run, after_run and end",
        "derive it from tf.compat.v1.train.SessionRunHook",
    )
