"""The forward pass of a Keras model alone: what is exported, and what predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from runner.config.schema import RunConfig
from runner.graph.built_graph import Features, PredictionGraph, ServingGraph
from runner.graph.calls import Calls
from runner.graph.experiment import features_of, overrides
from runner.graph.input_pipeline import without_autotuning
from runner.graph.optimization import averaged_names
from runner.graph.precision import build_model, dtype_policy, full_precision, new_graph
from runner.graph.replica import Replica
from runner.graph.serving import ENDPOINT, SIGNATURE, named
from runner.graph.splits import build_data, data_to_predict, one_pass
from runner.internals.keras import layers_of
from runner.restoration.model_variables import (
    keras_variables,
    model_variables,
    tensorflow_variable,
)
from runner.system.user_code import calling


def serving_graph(config: RunConfig, checkpoint: str) -> ServingGraph:
    """Builds the forward pass alone, of features that are fed."""
    calls = Calls(config)
    with new_graph(config, Replica()) as graph, dtype_policy(config):
        batch = features_of(data_to_predict(config).element_spec)
        features = tf.nest.map_structure(
            lambda spec: tf.compat.v1.placeholder(spec.dtype, [None, *spec.shape[1:]]), batch
        )
        model = build_model(config)
        is_nested = isinstance(model, keras.Model) and tf.nest.is_nested(batch)
        outputs = tf.function(
            lambda batch: full_precision(calls.model(model, batch, training=False)),
            autograph=False,
        )(features)
        variables = model_variables(model)
        signature = tf.compat.v1.saved_model.predict_signature_def(
            named("features", features), named("outputs", outputs)
        )
        return ServingGraph(
            graph=graph,
            signatures={SIGNATURE: signature, ENDPOINT: signature},
            restorer=_restorer(config, model, checkpoint),
            # Under their names in checkpoints.
            saver=tf.compat.v1.train.Saver(dict(variables)) if variables else None,
            main_op=tf.group(
                _initializer_of_metrics(model),
                tf.compat.v1.train.Scaffold.default_local_init_op(),
            ),
            nested=batch if is_nested else None,
        )


def prediction_graph(config: RunConfig, features: Features, checkpoint: str) -> PredictionGraph:
    """Builds the forward pass, or `predict_step` of a model that overrides it."""
    calls = Calls(config)
    with new_graph(config, Replica()) as graph, dtype_policy(config):
        if callable(features):
            dataset, cardinality = features(), None
        else:
            dataset, cardinality = one_pass(features, build_data(config), labelled=False)
        batches = tf.compat.v1.data.make_initializable_iterator(without_autotuning(dataset))
        model: Any = build_model(config)
        own_step = isinstance(model, keras.Model) and overrides(model, "predict_step")

        def predict(batch: Any) -> Any:
            if not own_step:
                return full_precision(calls.model(model, features_of(batch), training=False))
            with calling("model", f"{config.model['_target_']}.predict_step was called"):
                return full_precision(model.predict_step(batch))

        outputs = tf.function(predict, autograph=False)(batches.get_next())
        return PredictionGraph(
            graph=graph,
            outputs=named("outputs", outputs),
            restorer=_restorer(config, model, checkpoint),
            initializers=[
                _initializer_of_metrics(model),
                tf.compat.v1.tables_initializer(),
                batches.initializer,
            ],
            cardinality=cardinality,
            explaining=calls.explaining,
        )


def save_nested(model: Any, features: Any, folder: Path) -> None:
    """Writes a SavedModel whose endpoint `serve` takes nested features.

    A graph's signatures, which the same file has, take them by name. Variables have the names that
    they have in checkpoints.

    Args:
      model: the Keras model.
      features: nested `tf.TensorSpec`s of a batch.
      folder: where to write it.
    """
    specs = tf.nest.map_structure(
        lambda spec: tf.TensorSpec([None, *spec.shape[1:]], spec.dtype), features
    )
    leaves = tf.nest.flatten(specs)
    names = {id(leaf): name for name, leaf in named("features", specs).items()}

    def serve(batch: Any) -> Any:
        return full_precision(model(batch, training=False))

    def by_name(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = tf.nest.pack_sequence_as(specs, [inputs[names[id(leaf)]] for leaf in leaves])
        return named("outputs", serve(batch))

    root = tf.Module()
    for name, variable in keras_variables(model).items():
        holder, (*parents, last) = root, name.split("/")
        for parent in parents:
            if not hasattr(holder, parent):
                setattr(holder, parent, tf.Module())
            holder = getattr(holder, parent)
        setattr(holder, last, variable.value)
    root.metrics = list(model.metrics_variables)
    root.tables = [
        item
        for layer in layers_of(model)
        for item in vars(layer).values()
        if isinstance(item, tf.saved_model.experimental.TrackableResource)
    ]
    root.serve = tf.function(serve, input_signature=[specs], autograph=False)
    arguments = {
        names[id(leaf)]: tf.TensorSpec(leaf.shape, leaf.dtype, names[id(leaf)]) for leaf in leaves
    }
    signature = tf.function(by_name, autograph=False).get_concrete_function(**arguments)
    tf.saved_model.save(root, str(folder), signatures={SIGNATURE: signature, ENDPOINT: signature})


def _initializer_of_metrics(model: Any) -> tf.Operation:
    """Initialises the metrics that layers of a model update when they are called."""
    metrics = model.metrics_variables if isinstance(model, keras.Model) else []
    return tf.group(*[tensorflow_variable(variable).initializer for variable in metrics])


def _restorer(config: RunConfig, model: Any, checkpoint: str) -> tf.compat.v1.train.Saver:
    """Returns the saver that reads the variables of a model, or their averages, for its outputs."""
    variables = model_variables(model)
    if config.train.evaluate_ema:
        variables = averaged_names(variables, checkpoint)
    return tf.compat.v1.train.Saver(variables or None)
