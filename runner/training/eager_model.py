"""The Keras model of a configuration outside any graph, with the values of a checkpoint."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from runner.config.schema import RunConfig
from runner.errors import ConfigError, Problem
from runner.graph.optimization import averaged_names
from runner.graph.precision import build_model, dtype_policy
from runner.graph.splits import build_data, features_of
from runner.restoration.model_variables import eager_variables, model_variables, tensorflow_variable


def build_eager_model(config: RunConfig, remedy: str = "export it: mode=export") -> Any:
    """Returns the Keras model of a configuration, built, with its initial values.

    Raises:
      ConfigError: when the run has no Keras model, with the remedy.
    """
    model: Any = None
    if config.model:
        keras.utils.clear_session()  # Names count from the start, as in the graph of the run.
        keras.utils.set_random_seed(config.seed)
        with dtype_policy(config):
            model = build_model(config)
    if not isinstance(model, keras.Model):
        state, cause = "the run has no Keras model", "it trains a graph or a function"
        raise ConfigError(Problem(state, cause, remedy))
    if not model.built:
        features = features_of(build_data(config).test().element_spec)
        model(
            tf.nest.map_structure(lambda part: tf.zeros([1, *part.shape[1:]], part.dtype), features)
        )
    return model


def eager_model(config: RunConfig, prefix: str) -> Any:
    """Returns the Keras model with a checkpoint's weights, or with their averages if it has them.

    It begins with the names and seeds of Keras again, as a new graph does.

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
    lacking = sorted(names.keys() - reader.get_variable_to_shape_map().keys())
    if lacking:
        cause = f"it lacks {', '.join(lacking[:3])}"
        raise ConfigError(Problem(f"{prefix} is not a checkpoint of this model", cause))
    for name, variable in zip(names, variables.values(), strict=True):
        tensorflow_variable(variable).assign(reader.get_tensor(name))
    return model


def _one_example(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([1, *spec.shape[1:]], spec.dtype)
