"""Predicts and serves with a Keras model that has the values of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from runner.config.instantiation import name_of
from runner.config.schema import RunConfig
from runner.graph.built_graph import Features
from runner.graph.contracts import features_of
from runner.graph.evaluation import require_end
from runner.graph.serving import ENDPOINT, SIGNATURE, named
from runner.graph.splits import build_data, data_to_predict, one_pass
from runner.graph.step_errors import described
from runner.graph.trained_model import trained_model
from runner.internals.keras import layers_of
from runner.restoration.model_variables import keras_variables
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
    """Writes a SavedModel of the forward pass.

    Its signature takes features by name, and its endpoint `serve` takes them as the model does.
    """
    model = trained_model(config, checkpoint)
    with calling("model", "it was exported"):
        save_nested(model, features_of(data_to_predict(config).element_spec), folder)


def example(config: RunConfig) -> dict[str, Any]:
    """Returns the features of the first example that the model would predict from, by name."""
    for batch in data_to_predict(config).take(1):
        leaves = named("features", features_of(batch))
        return {name: leaf.numpy()[:1] for name, leaf in leaves.items()}
    return {}


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
        return model(batch, training=False)

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
    held = {id(variable) for variable in root.variables}
    # Of layers that count or measure when they are called.
    root.others = [variable for variable in signature.variables if id(variable) not in held]
    tf.saved_model.save(root, str(folder), signatures={SIGNATURE: signature, ENDPOINT: signature})
