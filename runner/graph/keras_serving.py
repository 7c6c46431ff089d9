"""Predicts and serves with a Keras model that has the values of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from numpy.typing import NDArray

from runner.config.instantiation import name_of
from runner.config.schema import RunConfig
from runner.graph.built_graph import Features
from runner.graph.captured import tables_of
from runner.graph.contracts import features_of
from runner.graph.evaluation import require_end
from runner.graph.serving import ENDPOINT, SIGNATURE, named
from runner.graph.splits import build_data, data_to_predict, one_pass
from runner.graph.step_errors import described
from runner.graph.trained_model import trained_model
from runner.internals.keras import layers_of
from runner.planning.model_variables import keras_variables
from runner.system.user_code import calling


def predictions(
    config: RunConfig, features: Features, checkpoint: str
) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Yields what `keras.Model.predict_step` returns for batches, by name."""
    model = trained_model(config, checkpoint)
    if callable(features):
        batches = features()
    else:
        batches, cardinality = one_pass(features, build_data(config), labelled=False)
        if cardinality is not None:
            require_end(features, cardinality)
    call = f"{name_of(config.model)}.predict_step was called with "
    step = tf.function(model.predict_step, autograph=False)
    with calling("model", call + described(batches.element_spec)):
        for batch in batches:
            # As `predict` hands it over: features alone, or with labels that are not used.
            outputs = named("outputs", step(batch))
            yield {name: tensor.numpy() for name, tensor in outputs.items()}


def save(config: RunConfig, checkpoint: str, folder: Path) -> None:
    """Writes a SavedModel of the forward pass by `keras.export.ExportArchive`.

    Its endpoint `serve` takes features as the model does, as in an export of `keras.Model.export`.
    Its signature `serving_default` takes them by name. Variables go by their names in checkpoints.
    """
    model = trained_model(config, checkpoint)
    specs = tf.nest.map_structure(
        lambda spec: tf.TensorSpec([None, *spec.shape[1:]], spec.dtype),
        features_of(data_to_predict(config).element_spec),
    )
    by_name = {
        name: tf.TensorSpec(spec.shape, spec.dtype, name)
        for name, spec in named("features", specs).items()
    }
    names = {id(leaf): name for name, leaf in named("features", specs).items()}
    order = [names[id(leaf)] for leaf in tf.nest.flatten(specs)]
    archive = keras.export.ExportArchive()
    for table in tables_of(layers_of(model)):
        archive.track(table)
    # Not `track(model)`, by which Keras saves every variable twice.
    for name, variable in keras_variables(model).items():
        archive.add_variable_collection(name, [variable.value])
    with calling("model", "it was exported"):
        serve = archive.add_endpoint(
            ENDPOINT, lambda features: model(features, training=False), [specs]
        )

        @tf.function(autograph=False)
        def serve_by_name(**features: tf.Tensor) -> dict[str, tf.Tensor]:
            leaves = [features[name] for name in order]
            return named("outputs", serve(tf.nest.pack_sequence_as(specs, leaves)))

        serve_by_name.get_concrete_function(**by_name)
        archive.add_endpoint(SIGNATURE, serve_by_name)
        archive.write_out(str(folder), verbose=False)


def example(config: RunConfig) -> dict[str, Any]:
    """Returns the features of the first example that the model would predict from, by name."""
    for batch in data_to_predict(config).take(1):
        leaves = named("features", features_of(batch))
        return {name: leaf.numpy()[:1] for name, leaf in leaves.items()}
    return {}
