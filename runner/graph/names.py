"""Names: of every variable, as plans and checkpoints know it, and in the arguments of hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, TypeAlias

import tensorflow as tf

from runner.config.instantiation import References, build_target, check_target, references
from runner.errors import ConfigError, Problem
from runner.graph.experiment import Training
from runner.internals.tensorflow import slice_of
from runner.restoration.variables import Partition


def name_variables(
    variables: list[tf.Variable],
    known: dict[str, tf.Variable],
    training: Training | None = None,
) -> dict[str, tf.Variable]:
    """Returns name -> variable for all of `variables`.

    Args:
      variables: the graph's global variables.
      known: the names of the model's variables, from `model_variables`. An optimizer's slot
        `model/kernel_3/Adam` takes the known name of `model/kernel_3` as its prefix.
      training: the training step, once it is built.
    """
    by_op = {variable.op.name: name for name, variable in known.items()}
    state_names = training.state_names if training else {}
    named = {}
    for variable in variables:
        op_name = state_names.get(variable.op.name, variable.op.name)
        if op_name in by_op:
            named[by_op[op_name]] = variable
            continue
        owner, rest = op_name, ""
        while owner not in by_op and "/" in owner:
            owner, _, last = owner.rpartition("/")
            rest = f"/{last}{rest}"
        named[f"{by_op[owner]}{rest}" if owner in by_op else op_name] = variable
    return named


def partition_of(variable: tf.Variable) -> Partition | None:
    """Returns which part of a partitioned variable this is; None for a whole one."""
    part = slice_of(variable)
    if part is None:
        return None
    return Partition(part.full_name, tuple(part.full_shape), tuple(part.var_offset))


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


def finder(graph: tf.Graph) -> Callable[[str], Any]:
    """Returns what finds a tensor (`name:0`) or an operation (`name`) by TensorFlow's own name."""

    def find(name: str) -> Any:
        try:
            return graph.as_graph_element(name)
        except (KeyError, ValueError):
            return None

    return find


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

    Args:
      nodes: name -> `_target_` of a hook.
      graph: what their references of kind `graph` stand for.

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
