"""Builds the hooks of the configuration, and finds their mistakes before anything is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from runner.config.instantiation import References, build_target, check_target, references
from runner.errors import ConfigError, Problem

_Hook: TypeAlias = tf.compat.v1.train.SessionRunHook

# `directory` and `checkpoints` are paths; `evaluation` is the hook that evaluates; `record` takes
# metric name -> value and the step; `saver` keeps all its checkpoints, apart from the run's own.
RUN_NAMES = ("directory", "checkpoints", "evaluation", "record", "saver")


def first_hooks(nodes: Mapping[str, Any], graph: References) -> dict[str, _Hook | None]:
    """Builds the hooks that need only the graph, and checks the others.

    Args:
      nodes: name -> `_target_` of a hook.
      graph: what their references of kind `graph` stand for.

    Returns:
      Name -> hook, or None for one that refers to the run.

    Raises:
      ConfigError: when a target is wrong, or a reference stands for nothing.
    """
    checking = graph.also("run", dict.fromkeys(RUN_NAMES, "known later"))
    hooks: dict[str, _Hook | None] = {}
    for name, node in nodes.items():
        check_target(f"hooks.{name}", node, checking)
        refers = any(kind == "run" for _, kind, _ in references("", node))
        hooks[name] = None if refers else build_hook(name, node, graph)
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
