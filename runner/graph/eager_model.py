"""The Keras model of a configuration outside any graph, with its initial or trained values.

A model that was built in a graph cannot be used outside it, so the model is built again, with the
same names of variables.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from runner.config.instantiation import build_target, has_reference, locate_target
from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.graph.epochs import RATE
from runner.graph.experiment import features_of, overrides_steps
from runner.graph.keras_optimizer import named_state, optimizers_of
from runner.graph.objective import resolved
from runner.graph.optimization import averaged_names
from runner.graph.precision import build_model, dtype_policy
from runner.graph.splits import batches_of, build_data, data_to_predict
from runner.restoration.model_variables import (
    LEARNING_RATE,
    eager_variables,
    tensorflow_variable,
)
from runner.system.user_code import calling, unchanged_random_states


def build_eager_model(config: RunConfig, batch: Any = None, *, compiled: bool = False) -> Any:
    """Returns the Keras model of a configuration, built, with its initial values.

    Args:
      config: the run's configuration.
      batch: nested `tf.TensorSpec`s of a training batch, for a model whose steps alone are called;
        by default those of the data, and a model whose steps call its parts is called itself too.
      compiled: whether it has the optimizers, loss and metrics of the run.

    Raises:
      ConfigError, UserCodeError: when it cannot be built so.
    """
    with _as_for_the_graph(config), dtype_policy(config):
        model: Any = build_model(config) if config.model else None
        if not isinstance(model, keras.Model):
            target = config.model.get("_target_")
            raise ConfigError.of(
                "the run has no Keras model",
                f"{target} is no keras.Model" if target else "it trains a graph or a function",
                "use hooks in place of callbacks, mode=export to export it, and no `proof`",
            )
        model_takes_steps = overrides_steps(model)
        if compiled and not model_takes_steps:
            _compile(config, model)
        if model.built and not compiled:
            return model
        takes_steps_only = batch is not None
        if batch is None:
            batch = batches_of("train", build_data(config), labelled=False).element_spec
        step = model.train_step if model_takes_steps else lambda data: model(features_of(data))
        with calling("model", f"{config.model['_target_']} was built eagerly"):
            # Tracing creates the variables, and computes nothing.
            tf.function(step, autograph=False).get_concrete_function(batch)
            if compiled and not model_takes_steps and model.optimizer is not None:
                model.optimizer.build(model.trainable_variables)
            if not takes_steps_only and not model.built:  # Keras saves only what is built.
                _call(model, features_of(data_to_predict(config).element_spec))
    return model


def _call(model: Any, features: Any) -> None:
    try:
        model(
            tf.nest.map_structure(lambda spec: tf.zeros([1, *spec.shape[1:]], spec.dtype), features)
        )
    except Exception:
        # It takes other features than the data give, such as noise. Its step has built its parts.
        if not all(layer.built for layer in model.layers):
            raise
        model.built = True


def trained_model(config: RunConfig, prefix: str) -> Any:
    """Returns the Keras model with a checkpoint's weights, or with their averages if it has them.

    It is compiled with the optimizers, loss and metrics of the run, and the optimizers have the
    state in the checkpoint. Keras counts its names and seeds from the start, as for a new graph.

    Args:
      config: the configuration of the run that saved the checkpoint.
      prefix: the path of the checkpoint, without the suffix of a file.

    Raises:
      ConfigError: when the run has no Keras model, or the model has other variables.
    """
    model = build_eager_model(config, compiled=True)
    reader = tf.train.load_checkpoint(prefix)
    saved = reader.get_variable_to_shape_map()
    variables = variables_of_run(model, saved)
    if config.train.evaluate_ema:
        variables = averaged_names(variables, prefix)
    lacking = sorted(variables.keys() - saved.keys())
    if lacking:
        cause = f"it lacks {', '.join(lacking[:3])}"
        raise ConfigError.of(f"{prefix} is not a checkpoint of this model", cause)
    for name, variable in variables.items():
        variable.assign(reader.get_tensor(name))
    return model


def variables_of_run(model: keras.Model, names: Container[str]) -> dict[str, tf.Variable]:
    """Returns name -> variable of an eager model, as in the graph and checkpoints of its run.

    All of its weights, and those variables of its optimizers that are among `names`.
    """
    weights = eager_variables(model)
    state = _state_of_optimizers(model, weights)
    rate = f"{type(getattr(model, 'optimizer', None)).__name__}/{LEARNING_RATE}"
    if rate in state and rate not in names:
        state[RATE] = state[rate]  # The configuration's rate is a variable of the run.
    variables = weights | {name: variable for name, variable in state.items() if name in names}
    return {name: tensorflow_variable(variable) for name, variable in variables.items()}


@contextmanager
def _as_for_the_graph(config: RunConfig) -> Iterator[None]:
    """Counts names and seeds from the start, as a new graph does, and restores random states."""
    with unchanged_random_states():
        keras.utils.clear_session()
        keras.utils.set_random_seed(config.seed)
        yield


def _compile(config: RunConfig, model: keras.Model) -> None:
    """Compiles a model with the optimizer, loss and metrics that the run takes."""
    optimizer = model.optimizer if model.compiled and not config.optimizer else _optimizer(config)
    arguments = _compile_arguments(config)
    if config.loss is None and model.compiled:
        model.optimizer = optimizer
    else:
        model.compile(optimizer=optimizer, **arguments)


def _compile_arguments(config: RunConfig) -> dict[str, Any]:
    """Returns the arguments of `keras.Model.compile` that stand for a configuration's objective."""

    def metrics_of(group: str) -> Any:
        nodes = getattr(config, group)
        key, by_output, flat = f"{group}.{{}}", {}, []
        for name, node in nodes.items():
            if isinstance(node, Mapping) and "_target_" not in node:
                by_output[name] = [
                    _renamed(inner, resolved("metric", key.format(inner), item))
                    for inner, item in node.items()
                ]
            else:
                flat.append(_renamed(name, resolved("metric", key.format(name), node)))
        return by_output or flat or None

    return {
        "loss": resolved("loss", "loss", config.loss),
        "loss_weights": config.loss_weights or None,
        "metrics": metrics_of("metrics"),
        "weighted_metrics": metrics_of("weighted_metrics"),
    }


def _renamed(name: str, metric: Any) -> Any:
    """Returns a metric that has a name of the configuration, where it is a function."""
    has_name = isinstance(metric, str | keras.metrics.Metric)
    return metric if has_name else keras.metrics.MeanMetricWrapper(metric, name)


def _optimizer(config: RunConfig) -> keras.optimizers.Optimizer:
    """Returns the configured optimizer; in place of TensorFlow's, one with its learning rate."""
    node = config.optimizer
    target = locate_target("optimizer", node)
    is_v1 = isinstance(target, type) and issubclass(target, tf.compat.v1.train.Optimizer)
    if not is_v1 and not has_reference(node):
        optimizer: keras.optimizers.Optimizer = build_target("optimizer", node)
        return optimizer
    rate = node.get("learning_rate")
    if not isinstance(rate, int | float):  # Keras refuses to set the rate of such an optimizer.
        rate = keras.optimizers.schedules.PolynomialDecay(1.0, 1)
    return keras.optimizers.SGD(rate)


def _state_of_optimizers(model: keras.Model, named: Mapping[str, Any]) -> dict[str, Any]:
    """Returns name in the graph -> variable of the optimizers of a model; `named` are its own."""
    model_takes_steps = overrides_steps(model)
    names = {id(tensorflow_variable(variable)): name for name, variable in named.items()}

    def owner(variable: Any) -> str:
        return names.get(id(tensorflow_variable(variable)), "")

    state: dict[str, Any] = {}
    for attribute, optimizer in optimizers_of(model):
        prefix = attribute if model_takes_steps else type(optimizer).__name__
        state.update((name, variable) for variable, name in named_state(optimizer, prefix, owner))
    return state
