"""Builds the graph of an experiment: data, model, loss, optimizer, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from runner.averages import SUFFIX
from runner.checkpoints.reader import TensorSpec
from runner.config import RunConfig
from runner.errors import ConfigError, Problem
from runner.experiment import BuiltGraph, Data, Model, PerExample, Split
from runner.input_pipeline import TrainingInput
from runner.restoration.ownership import assign_owners
from runner.restoration.variables import WARM_STARTED, VariableSpec, classify
from runner.switches import build_model, dtype_policy, full_precision, jit_compile, set_threads
from runner.targets import build_target
from runner.training_step import Forward, TrainingStep
from runner.variable_names import model_variables, name_variables


def build_graph(config: RunConfig, split: str, *, train: bool) -> BuiltGraph:
    """Builds the graph in which a run trains and evaluates.

    Args:
      config: the validated configuration.
      split: `validation` or `test`, the split to evaluate.
      train: whether to build the training step.

    Raises:
      ConfigError: when a `_target_` cannot be built or does not keep its contract.
    """
    set_threads(config)
    keras.utils.clear_session()  # Names of layers and seeds count from the start in every graph.
    keras.utils.set_random_seed(config.seed)
    graph = tf.Graph()
    with graph.as_default(), dtype_policy(config):
        tf.compat.v1.set_random_seed(config.seed)
        global_step = tf.compat.v1.train.get_or_create_global_step()
        data = build_data(config)
        model = build_model(config)
        functions: dict[str, PerExample] = {"loss": build_target("loss", config.loss)}
        for name, node in config.metrics.items():
            functions[name] = build_target(f"metrics.{name}", node)

        step = None
        if train:
            source = TrainingInput(
                _pairs("train", data.train()), prefetch=getattr(data, "prefetch", True)
            )
            forward = _forward(config, model, functions, training=True)
            step = TrainingStep(config, source, forward, tuple(functions), global_step)
        evaluation = _split(split, data, _forward(config, model, functions, training=False))
        keras_names = model_variables(model)
        own = name_variables(tf.compat.v1.global_variables(), keras_names)
        frozen = _frozen(config, own)
        trained = {
            name: each for name, each in own.items() if each.trainable and name not in frozen
        }
        training = step.build(trained) if step is not None else None

        variables = name_variables(tf.compat.v1.global_variables(), keras_names)
        specs = tuple(
            _spec(name, variable, model=name in own, frozen=name in frozen)
            for name, variable in variables.items()
        )
        saved = dict(variables)
        if step is not None:
            saved[source.saveable.name] = source.saveable
        elif config.train.ema_decay is not None and config.train.evaluate_ema:
            saved = {f"{name}{SUFFIX}" if name in trained else name: v for name, v in saved.items()}
        saver = tf.compat.v1.train.Saver(
            saved, max_to_keep=config.train.keep_checkpoints, save_relative_paths=True
        )
    return BuiltGraph(graph, variables, specs, training, evaluation, saver)


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


def _forward(
    config: RunConfig, model: Model, functions: Mapping[str, PerExample], *, training: bool
) -> Forward:
    """Wraps the forward pass in a tf.function, whose side effects the graph keeps.

    After a plain call in a graph batch-norm statistics stand still and dropout repeats its mask.
    """

    def forward(features: Any, labels: Any) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        outputs = full_precision(model(features, training=training))
        values = {name: function(labels, outputs) for name, function in functions.items()}
        # Keras collects regularisation losses per call, inside this function only.
        penalty = tf.add_n([tf.constant(0.0), *getattr(model, "losses", [])])
        return values, penalty

    function: Forward = tf.function(forward, autograph=False, jit_compile=jit_compile(config))
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


def _frozen(config: RunConfig, own: Mapping[str, tf.Variable]) -> frozenset[str]:
    candidates = [name for name in own if classify(name, model=True) in WARM_STARTED]
    ownership = assign_owners(candidates, config.scaffolds, config.restoration.collision)
    return ownership.frozen(config.scaffolds)


def _spec(name: str, variable: tf.Variable, *, model: bool, frozen: bool) -> VariableSpec:
    tensor = TensorSpec(name, tuple(variable.shape.as_list()), variable.dtype.base_dtype.name)
    trainable = variable.trainable and model and not frozen
    return VariableSpec(
        tensor,
        classify(name, model=model),
        trainable,
        _initializer(variable),
        frozen=variable.trainable and frozen,
    )


def _initializer(variable: tf.Variable) -> str:
    """Names the operation that computes the initial value, e.g. `StatelessRandomUniformV2`."""
    value = variable.initializer.inputs[1].op
    while value.type in ("Identity", "AddV2", "Mul", "Cast", "Reshape") and value.inputs:
        value = value.inputs[0].op
    return str(value.type)
