"""Hooks and callbacks of the configuration, and the `${graph:NAME}` and `${run:NAME}` in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from runner.config.instantiation import (
    References,
    build_target,
    check_target,
    locate_target,
    name_of,
)
from runner.errors import ConfigError
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


@dataclass(frozen=True)
class HookKind:
    """Hooks or callbacks of the configuration: what they must be, and what they may refer to.

    Attributes:
      group: their key in the configuration.
      base, base_name: the class that they derive from, and its public name.
      run_names: the names that `${run:NAME}` may have.
      cause, remedy: why it must be the class, and what to do; of the problem where it is not.
    """

    group: str
    base: type
    base_name: str
    run_names: tuple[str, ...]
    cause: str
    remedy: str

    def check(self, nodes: Mapping[str, Any], graph: References) -> None:
        """Checks the hooks of the configuration before there is a run; builds none.

        Args:
          nodes: name -> entry of the group.
          graph: see `graph_references`.

        Raises:
          ConfigError: when a target or an argument's name or type is wrong, a reference stands for
            nothing, or a target is a class of something else.
        """
        references = graph.also("run", {name: name for name in self.run_names})
        for name, node in nodes.items():
            key = f"{self.group}.{name}"
            check_target(key, node, references)
            target = locate_target(key, node)
            if isinstance(target, type) and not issubclass(target, self.base):
                raise self._error(key, node)

    def build(self, name: str, node: Mapping[str, Any], references: References) -> Any:
        """Builds the hook `GROUP.NAME`.

        Raises:
          ConfigError: when its target is wrong or is no hook, or a reference stands for nothing.
          UserCodeError: when its target raises another error than a ValueError or TypeError.
        """
        key = f"{self.group}.{name}"
        hook = build_target(key, node, references)
        if not isinstance(hook, self.base):
            raise self._error(key, node)
        return hook

    def _error(self, key: str, node: Mapping[str, Any]) -> ConfigError:
        state = f"{key}: {name_of(node)} is not a {self.base_name}"
        return ConfigError.of(state, self.cause, self.remedy)


# `directory` and `checkpoints` are paths; `evaluation` is the hook that evaluates; `record` takes
# metric name -> value and the step; `saver` keeps all its checkpoints, apart from the run's.
HOOKS = HookKind(
    "hooks",
    tf.compat.v1.train.SessionRunHook,
    "tf.compat.v1.train.SessionRunHook",
    ("directory", "checkpoints", "evaluation", "record", "saver"),
    "the session calls its begin, before_run, after_run and end",
    "derive it from tf.compat.v1.train.SessionRunHook",
)
CALLBACKS = HookKind(
    "callbacks",
    keras.callbacks.Callback,
    "keras.callbacks.Callback",
    ("directory", "checkpoints", "record"),
    "training calls its on_epoch_end and other methods",
    "derive it from keras.callbacks.Callback, or name a hook below `hooks`",
)
