"""The Keras model of a configuration outside any graph, with the values of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from runner.config.schema import RunConfig
from runner.errors import ConfigError, Problem
from runner.graph.eager_twin import built_again, state_of_optimizers
from runner.graph.experiment import features_of
from runner.graph.optimization import averaged_names
from runner.graph.precision import full_precision
from runner.graph.serving import ENDPOINT, SIGNATURE, named
from runner.graph.splits import batches_of, build_data, data_to_predict
from runner.internals.keras import layers_of
from runner.restoration.model_variables import (
    eager_variables,
    keras_variables,
    model_variables,
    tensorflow_variable,
)


def build_eager_model(
    config: RunConfig, remedy: str = "export it: mode=export", *, compiled: bool = False
) -> Any:
    """Returns the Keras model of a configuration, built, with its initial values.

    If `compiled`, it has the optimizers, loss and metrics of the run.

    Raises:
      ConfigError: when the run has no Keras model, with the remedy.
    """
    if not config.model:
        state, cause = "the run has no Keras model", "it trains a graph or a function"
        raise ConfigError(Problem(state, cause, remedy))

    def batch() -> Any:
        return batches_of("train", build_data(config), labelled=False).element_spec

    model: Any = built_again(config, batch, compiled=compiled)
    if not model.built:  # Its own steps call parts of it. Keras saves what is built.
        features = features_of(data_to_predict(config).element_spec)
        try:
            model(tf.nest.map_structure(_one_example, features))
        except Exception:
            # It takes other features than the data give, such as noise. Its step has built it.
            if not all(layer.built for layer in model.layers):
                raise
            model.built = True
    return model


def eager_model(config: RunConfig, prefix: str) -> Any:
    """Returns the Keras model with a checkpoint's weights, or with their averages if it has them.

    It is compiled with the optimizers, loss and metrics of the run, and optimizers have the state
    that the checkpoint holds. It begins with the names and seeds of Keras
    again, as a new graph does.

    Args:
      config: the configuration of the run that saved the checkpoint.
      prefix: the path of the checkpoint, without the suffix of a file.

    Raises:
      ConfigError: when the run has no Keras model, or the model has other variables.
    """
    model = build_eager_model(config, compiled=True)
    variables = eager_variables(model)
    names = model_variables(model)
    if config.train.evaluate_ema:
        names = averaged_names(names, prefix)
    reader = tf.train.load_checkpoint(prefix)
    saved = reader.get_variable_to_shape_map()
    lacking = sorted(names.keys() - saved.keys())
    if lacking:
        cause = f"it lacks {', '.join(lacking[:3])}"
        raise ConfigError(Problem(f"{prefix} is not a checkpoint of this model", cause))
    optimizers = state_of_optimizers(model, variables)
    held = {name: variable for name, variable in optimizers.items() if name in saved}
    for name, variable in {**dict(zip(names, variables.values(), strict=True)), **held}.items():
        tensorflow_variable(variable).assign(reader.get_tensor(name))
    return model


def _one_example(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([1, *spec.shape[1:]], spec.dtype)


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
