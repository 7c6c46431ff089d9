"""Builds the graphs of a configuration with a `graph` or a `model_fn`.

The target is called once for each mode, in a new graph with the seed and the global step. The
evaluation runs in a separate session.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
from hydra.utils import get_object

from runner.config.cluster_spec import is_cluster
from runner.config.instantiation import build_target
from runner.config.schema import RunConfig
from runner.errors import ConfigError, Problem, RunnerError, UserCodeError, ranked
from runner.graph.calls import Calls
from runner.graph.configured_hooks import first_hooks, graph_references
from runner.graph.experiment import BuiltGraph, Training
from runner.graph.graph_spec import EvaluationGraph, GraphSpec, separate_evaluation
from runner.graph.input_pipeline import InputState, needed
from runner.graph.precision import new_graph, set_threads
from runner.graph.replica import Replica
from runner.graph.training_step import rollback_count
from runner.graph.variables import checkpoint_saver, name_variables, saved_as, variable_specs
from runner.restoration.model_variables import which_train
from runner.system.user_code import located, raised, raised_by_operation

# Makes the graph function of a configuration with a `model_fn`. It is imported by name, like any
# target, because its room comes after this one.
MODEL_FN = "runner.estimator.model_fn.graph_function"
# Types of operations, by their beginnings, at which an input can end.
_ENDING = ("IteratorGetNext", "Queue", "Reader", "PyFunc", "EagerPyFunc")


def build_own_graph(config: RunConfig, split: str, *, train: bool, replica: Replica) -> BuiltGraph:
    """Builds the training graph and the evaluation graph, or only the latter.

    The arguments and errors are those of `runner.graph.build.build_graph`.
    """
    set_threads(config)
    with new_graph(config, Replica()):  # A session of this process evaluates, also in a cluster.
        evaluation, variables = _evaluation(config, split)
    if evaluation.hooks:
        evaluation = replace(evaluation, anew=lambda: _evaluation_anew(config, split))
    if not train:
        specs = variable_specs(variables, which_train(None, variables), {}, None)
        saver = evaluation.scaffold.saver
        return BuiltGraph(
            evaluation.graph, variables, specs, None, evaluation, {}, saver, {}, Calls(config)
        )
    with new_graph(config, replica) as graph:
        spec = build_spec(config, "train")
        problems = list(_training_problems(config, spec))
        if problems:
            raise ConfigError(*problems)
        training = _training(config, spec)
        variables = name_variables(tf.compat.v1.global_variables(), {})
        hooks = first_hooks(config.hooks, graph_references(graph, variables, training))
        transfer = checkpoint_saver(config, saved_as(variables), None)
        saver = spec.scaffold.saver
        if saver is None:
            source = spec.input if training.input_is_saved else None
            saver = checkpoint_saver(config, saved_as(variables), source)
        saver.build()
        specs = variable_specs(variables, _of_the_model(variables, spec.loss), {}, training)
    split_of_run = replace(evaluation, transfer=transfer)
    calls = _OwnCalls(config, "train")
    return BuiltGraph(
        graph, variables, specs, training, split_of_run, hooks, saver, {}, calls, own=spec
    )


class _OwnCalls(Calls):
    """The calls of the target of a graph, which makes all of its operations."""

    def __init__(self, config: RunConfig, mode: str) -> None:
        super().__init__(config)
        self._mode = mode

    def _explained(self, error: tf.errors.OpError) -> UserCodeError:
        place, _ = _target(self.config)
        if place == "model_fn" and "IteratorGetNext" in str(error.message):
            place = f"input_fns.{self._mode}"
        made = error.op.traceback if error.op is not None else ()
        return raised_by_operation(place, error, made)


def build_spec(config: RunConfig, mode: str) -> GraphSpec:
    """Adds a configuration's graph for a mode to the default graph.

    Args:
      config: the validated configuration.
      mode: `train`, `validation`, `test` or `export`.

    Raises:
      ConfigError: when the target does not fit, or raises a ValueError or TypeError.
      UserCodeError: when it raises another error.
    """
    key, node = _target(config)
    function: Callable[..., GraphSpec]
    if key == "model_fn":
        function = get_object(MODEL_FN)(config)
    else:
        function = build_target(key, {**node, "_partial_": True})
    try:
        spec = function(mode=mode)
    except RunnerError:
        raise
    except (ValueError, TypeError) as error:
        state = f"{key}: {node['_target_']} fails for mode {mode}"
        raise ConfigError(Problem(state, located(error))) from error
    except Exception as error:
        raise raised(key, error, f"{node['_target_']} was called for mode {mode}") from error
    if not isinstance(spec, GraphSpec):
        raise ConfigError(
            Problem(
                f"{key}: {node['_target_']} returns {type(spec).__name__} for mode {mode}",
                "the run needs the graph's loss, train_op and so on",
                "return runner.GraphSpec(loss=..., train_op=...)",
            )
        )
    return spec


def _target(config: RunConfig) -> tuple[str, Mapping[str, Any]]:
    """Returns the key of what builds the graph, and its value."""
    if config.model_fn is not None:
        return "model_fn", config.model_fn
    return "graph", config.graph or {}


def _training_problems(config: RunConfig, spec: GraphSpec) -> Iterator[Problem]:
    key, _ = _target(config)
    for name in ("loss", "train_op"):
        if getattr(spec, name) is None:
            yield Problem(f"{key}: {name} is missing for mode train", "no step can be trained")
    graph = tf.compat.v1.get_default_graph()
    for name, value in {"loss": spec.loss, "train_op": spec.train_op, **spec.metrics}.items():
        if getattr(value, "graph", graph) is not graph:
            yield Problem(
                f"{key}: {name} belongs to another graph",
                "each mode is built in a new graph",
                f"create {name} within the call",
            )
            return
    if callable(spec.train_op) and is_cluster(config.cluster):
        yield Problem(
            f"{key}: train_op is a function, in a cluster",
            "workers can run only operations",
            "return an operation as train_op",
        )
    if spec.train_op is not None and not callable(spec.train_op):
        step = tf.compat.v1.train.get_global_step()
        if not _may_write(spec.train_op, step):
            yield Problem(
                f"{key}: train_op does not increment the global step",
                "train.steps counts global steps, so training would never end",
                "minimize(..., global_step=tf.compat.v1.train.get_global_step())",
            )


def _may_write(train_op: tf.Operation | tf.Tensor, variable: tf.Variable) -> bool:
    """Whether an operation depends on one that may write a variable."""
    taken = variable.op.outputs[0].consumers()
    reads = ("ReadVariableOp", "VarIsInitializedOp", "IsVariableInitialized", "Identity")
    runs = needed([train_op])
    return any(each in runs for each in taken if each.type not in reads)


def _of_the_model(variables: Mapping[str, tf.Variable], loss: tf.Tensor | None) -> dict[str, bool]:
    """Returns the variables that train or that the loss depends on, and whether they train.

    Others are an optimizer's.
    """
    read = needed([] if loss is None else [loss])
    return {
        name: each.trainable
        for name, each in variables.items()
        if each.trainable or each.op in read
    }


def _training(config: RunConfig, spec: GraphSpec) -> Training:
    loss, train_op = spec.loss, spec.train_op
    if loss is None or train_op is None:
        raise ValueError("checked before")
    global_step = tf.compat.v1.train.get_global_step()
    # A function has run before: what is left of its step is to read the global step.
    operation = tf.no_op() if callable(train_op) else getattr(train_op, "op", train_op)
    with tf.control_dependencies([operation]):
        step = tf.cast(tf.identity(global_step), tf.int64)
    source = spec.input
    no_position = InputState(tf.no_op(), tf.no_op(), tf.no_op(), "")
    return Training(
        train_op=operation,
        step=step,
        values={
            name: tf.cast(value, tf.float32)
            for name, value in {"loss": loss, **spec.metrics}.items()
        },
        rollbacks=rollback_count(config),
        input_initializer=tf.no_op() if source is None else source.initializer,
        input_seconds=tf.constant(0.0, tf.float64) if source is None else source.seconds,
        input_state=no_position if source is None else source.state,
        input_is_saved=config.train.save_input
        and source is not None
        and spec.scaffold.saver is None,
    )


def _evaluation(config: RunConfig, split: str) -> tuple[EvaluationGraph, dict[str, tf.Variable]]:
    """Adds the graph that evaluates a split to the default graph.

    Returns:
      The evaluation, of metrics that are numbers, and name -> variable of the model.
    """
    spec = build_spec(config, split)
    variables = name_variables(tf.compat.v1.global_variables(), {})
    saver = spec.scaffold.saver or checkpoint_saver(config, saved_as(variables), None)
    evaluation = separate_evaluation(split, spec, saver)
    numbers = {
        name: value
        for name, value in evaluation.values.items()
        if tf.is_tensor(value)
        and value.dtype not in (tf.string, tf.variant)
        and value.shape.rank in (None, 0)
    }
    objective = config.train.objective.removeprefix("validation/")
    if objective not in numbers:
        raise ConfigError(
            Problem(
                f"train.objective is {config.train.objective!r}",
                f"the graph for mode {split} evaluates no number of that name",
                "name one of its metrics",
                tuple(f"validation/{each}" for each in ranked(objective, numbers)),
            )
        )
    ends = any(each.type.startswith(_ENDING) for each in needed([evaluation.update]))
    changes: dict[str, Any] = {
        "values": numbers,
        "once": not ends,
        "cardinality": None if spec.input is None else spec.input.cardinality(),
        "calls": _OwnCalls(config, split),
    }
    return replace(evaluation, **changes), variables


def _evaluation_anew(config: RunConfig, split: str) -> EvaluationGraph:
    """Builds the evaluation graph again, without changing Python's random states."""

    def build() -> EvaluationGraph:
        with new_graph(config, Replica()):
            return _evaluation(config, split)[0]

    before, of_numpy = random.getstate(), np.random.get_state()
    try:
        # Keras resets the names of layers in a thread without a graph, and here one is in use.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(build).result()
    finally:
        random.setstate(before)
        np.random.set_state(of_numpy)
