"""The Keras model of a configuration outside any graph, with the values of a checkpoint."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from runner.config.schema import RunConfig
from runner.errors import ConfigError, Problem
from runner.graph.eager_twin import built_again, state_of_optimizers
from runner.graph.optimization import averaged_names
from runner.graph.splits import batches_of, build_data, data_to_predict, features_of
from runner.restoration.model_variables import (
    eager_variables,
    model_variables,
    tensorflow_variable,
)


def build_eager_model(config: RunConfig, remedy: str = "export it: mode=export") -> Any:
    """Returns the Keras model of a configuration, built and compiled, with its initial values.

    Raises:
      ConfigError: when the run has no Keras model, with the remedy.
    """
    if not config.model:
        state, cause = "the run has no Keras model", "it trains a graph or a function"
        raise ConfigError(Problem(state, cause, remedy))
    batch = batches_of("train", build_data(config), labelled=False).element_spec
    model: Any = built_again(config, batch)
    if not model.built:  # Its own steps call parts of it. Keras saves what is built.
        features = features_of(data_to_predict(config).element_spec)
        model(tf.nest.map_structure(_one_example, features))
    return model


def eager_model(config: RunConfig, prefix: str) -> Any:
    """Returns the Keras model with a checkpoint's weights, or with their averages if it has them.

    It is compiled with the optimizers, loss and metrics of the run, and optimizers have the state
    that the checkpoint holds.

    Args:
      config: the configuration of the run that saved the checkpoint.
      prefix: the path of the checkpoint, without the suffix of a file.

    Raises:
      ConfigError: when the run has no Keras model, or the model has other variables.
    """
    model = build_eager_model(config)
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
