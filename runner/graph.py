"""Builds the graph of an experiment: data, model, loss, optimizer, metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from runner.checkpoints.reader import TensorSpec
from runner.config import RunConfig, ScaffoldConfig
from runner.errors import ConfigError, Problem
from runner.experiment import BuiltGraph, Data, Model, PerExample, Split, Training
from runner.optimization import Schedule, train_op
from runner.restoration.ownership import assign_owners
from runner.restoration.variables import WARM_STARTED, Partition, VariableSpec, classify
from runner.targets import build_target
from runner.variable_names import model_variables, name_variables

# Maps a batch of features and labels to the values per example by metric name, and the penalty.
Forward = Callable[[Any, Any], tuple[dict[str, tf.Tensor], tf.Tensor]]


def build_graph(config: RunConfig, split: str, *, train: bool) -> BuiltGraph:
    """Builds the graph in which a run trains and evaluates.

    Args:
      config: the validated configuration.
      split: `validation` or `test`, the split to evaluate.
      train: whether to build the training step.

    Raises:
      ConfigError: when a `_target_` cannot be built or does not keep its contract.
    """
    keras.utils.clear_session()  # Names of layers and seeds count from the start in every graph.
    keras.utils.set_random_seed(config.seed)
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.set_random_seed(config.seed)
        global_step = tf.compat.v1.train.get_or_create_global_step()
        data = build_data(config)
        model: Model = build_target("model", config.model)
        functions: dict[str, PerExample] = {"loss": build_target("loss", config.loss)}
        for name, node in config.metrics.items():
            functions[name] = build_target(f"metrics.{name}", node)

        iterator = _training_input(data) if train else None
        if iterator is not None:
            values, penalty = _forward(model, functions, training=True)(*iterator.get_next())
        evaluation = _split(split, data, _forward(model, functions, training=False))
        keras_names = model_variables(model)
        own = name_variables(tf.compat.v1.global_variables(), keras_names)
        policies = _policies(config, own)
        frozen = {name for name, policy in policies.items() if not policy.trainable}
        training = None
        if iterator is not None:
            means = {name: tf.reduce_mean(value) for name, value in values.items()}
            means["loss"] += penalty
            train_op = _train_op(config, means["loss"], global_step, own, policies)
            with tf.control_dependencies([train_op]):
                step = tf.identity(global_step.read_value())
            training = Training(
                train_op, step, means, iterator.initializer, config.train.save_input
            )

        variables = name_variables(tf.compat.v1.global_variables(), keras_names)
        specs = tuple(
            _spec(name, variable, model=name in own, frozen=name in frozen)
            for name, variable in variables.items()
        )
        wanted = config.hooks if train else {}
        hooks = tuple(_hook(name, node) for name, node in wanted.items())
        saver = _saver(config, variables, iterator)
    return BuiltGraph(graph, variables, specs, training, evaluation, hooks, saver)


def build_data(config: RunConfig) -> Data:
    """Builds the experiment's data.

    Raises:
      ConfigError: when the target cannot be built or lacks a split.
    """
    data = build_target("data", config.data)
    if not isinstance(data, Data):
        lacking = [each for each in ("train", "validation", "test") if not hasattr(data, each)]
        raise ConfigError(
            Problem(
                f"data: {config.data['_target_']} has no {', '.join(lacking)}",
                "data has the methods train(), validation() and test(), each a tf.data.Dataset",
            )
        )
    return data


def _training_input(data: Data) -> Any:
    with tf.name_scope("input"):
        return tf.compat.v1.data.make_initializable_iterator(_pairs("train", data.train()))


def _pairs(split: str, dataset: Any) -> tf.data.Dataset:
    element = getattr(dataset, "element_spec", None)
    if isinstance(element, tuple) and len(element) == 2:
        return dataset
    raise ConfigError(
        Problem(
            f"data.{split}() gives {element if element is not None else type(dataset).__name__}",
            "it must be a tf.data.Dataset of (features, labels) batches",
        )
    )


def _forward(model: Model, functions: Mapping[str, PerExample], *, training: bool) -> Forward:
    """Wraps the forward pass in a tf.function, whose side effects the graph keeps.

    After a plain call in a graph batch-norm statistics stand still and dropout repeats its mask.
    """

    def forward(features: Any, labels: Any) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        outputs = model(features, training=training)
        values = {name: function(labels, outputs) for name, function in functions.items()}
        # Keras collects regularisation losses per call, inside this function only.
        penalty = tf.add_n([tf.constant(0.0), *getattr(model, "losses", [])])
        return values, penalty

    function: Forward = tf.function(forward, autograph=False)
    return function


def _split(name: str, data: Data, forward: Forward) -> Split:
    with tf.name_scope(name):
        dataset = _pairs(name, getattr(data, name)())
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        values, penalty = forward(*iterator.get_next())
        counts = {each: tf.size(value, out_type=tf.int64) for each, value in values.items()}
        sums = {each: tf.reduce_sum(tf.cast(value, tf.float64)) for each, value in values.items()}
        sums["loss"] += tf.cast(penalty, tf.float64) * tf.cast(counts["loss"], tf.float64)
    return Split(name, iterator.initializer, sums, counts)


def _policies(config: RunConfig, own: Mapping[str, tf.Variable]) -> dict[str, ScaffoldConfig]:
    """Returns variable -> the scaffold that says how it trains, for those that one owns."""
    wholes = {name: _whole(name, variable) for name, variable in own.items()}
    states = {whole: classify(whole, model=True) for whole in wholes.values()}
    candidates = {name: state for name, state in states.items() if state in WARM_STARTED}
    claims = assign_owners(candidates, config.scaffolds, config.restoration.collision).claims
    return {
        name: config.scaffolds[claims[whole][0]]
        for name, whole in wholes.items()
        if whole in claims
    }


def _train_op(
    config: RunConfig,
    loss: tf.Tensor,
    global_step: tf.Variable,
    own: Mapping[str, tf.Variable],
    policies: Mapping[str, ScaffoldConfig],
) -> tf.Operation:
    schedules = []
    for name, variable in own.items():
        policy = policies.get(name, ScaffoldConfig())
        if variable.trainable and policy.trainable:
            schedule = Schedule(policy.freeze_until_step, policy.learning_rate_multiplier)
            schedules.append((variable, schedule))
    if not schedules:
        raise ConfigError(
            Problem(
                "no variable is left to train",
                "every trainable variable belongs to a scaffold with `trainable: false`",
                "set trainable: true for one of them",
                tuple(config.scaffolds),
            )
        )
    return train_op(config.optimizer, loss, global_step, schedules)


def _spec(name: str, variable: tf.Variable, *, model: bool, frozen: bool) -> VariableSpec:
    tensor = TensorSpec(name, tuple(variable.shape.as_list()), variable.dtype.base_dtype.name)
    trainable = variable.trainable and model and not frozen
    return VariableSpec(
        tensor,
        classify(_whole(name, variable), model=model),
        trainable,
        _initializer(variable),
        variable.trainable and frozen,
        _partition(variable),
    )


def _partition(variable: tf.Variable) -> Partition | None:
    # Private, but nothing public tells which part of the whole a variable is.
    part = variable._get_save_slice_info()
    if part is None:
        return None
    return Partition(part.full_name, tuple(part.full_shape), tuple(part.var_offset))


def _whole(name: str, variable: tf.Variable) -> str:
    """Returns the name that patterns and checkpoints use: the whole's for a part of a variable."""
    partition = _partition(variable)
    return partition.name if partition else name


def _initializer(variable: tf.Variable) -> str:
    """Names the operation that computes the initial value, e.g. `StatelessRandomUniformV2`."""
    value = variable.initializer.inputs[1].op
    while value.type in ("Identity", "AddV2", "Mul", "Cast", "Reshape") and value.inputs:
        value = value.inputs[0].op
    return str(value.type)


def _hook(name: str, node: dict[str, Any]) -> tf.compat.v1.train.SessionRunHook:
    hook = build_target(f"hooks.{name}", node)
    if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
        raise ConfigError(
            Problem(
                f"hooks.{name}: {node['_target_']} is not a tf.compat.v1.train.SessionRunHook",
                "the session calls its begin, before_run, after_run and end",
                "derive it from tf.compat.v1.train.SessionRunHook",
            )
        )
    return hook


def _saver(
    config: RunConfig, variables: Mapping[str, tf.Variable], iterator: Any
) -> tf.compat.v1.train.Saver:
    saved: dict[str, Any] = {}
    for name, variable in variables.items():
        if _partition(variable) is None:
            saved[name] = variable
        else:  # The saver writes the parts of one variable as one tensor.
            saved.setdefault(_whole(name, variable), []).append(variable)
    if iterator is not None and config.train.save_input:
        state = _input_state(iterator)
        saved[state.name] = state
    return tf.compat.v1.train.Saver(
        saved, max_to_keep=config.train.keep_checkpoints, save_relative_paths=True
    )


def _input_state(iterator: Any) -> Any:
    """Returns what saves and restores the position in the training input.

    Restoring starts the input first: TensorFlow restores only an initialised iterator.
    """
    state = tf.data.experimental.make_saveable_from_iterator(iterator, external_state_policy="warn")
    restore = state.restore

    def initialise_and_restore(tensors: Any, shapes: Any) -> Any:
        with tf.control_dependencies([iterator.initializer]):
            return restore(tensors, shapes)

    state.restore = initialise_and_restore
    return state
