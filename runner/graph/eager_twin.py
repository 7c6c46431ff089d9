"""The model of a run once more, eagerly, with the values of a session: for callbacks.

Nothing of a graph works outside of it, so that the model is built again, as it was for the graph:
its variables have the same names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.config.instantiation import build_target, has_reference, locate_target
from runner.config.schema import RunConfig
from runner.errors import ConfigError, Problem
from runner.graph.epochs import RATE
from runner.graph.experiment import features_of, takes_its_own_steps
from runner.graph.input_pipeline import TrainingInput
from runner.graph.keras_optimizer import named_state, optimizers_of
from runner.graph.objective import resolved
from runner.graph.precision import build_model, dtype_policy
from runner.restoration.model_variables import LEARNING_RATE, keras_variables, tensorflow_variable
from runner.system.user_code import calling


def built_again(
    config: RunConfig, batch: Callable[[], Any], *, compiled: bool = True
) -> keras.Model:
    """Returns the model of a configuration, eager, with variables, optimizer, loss and metrics.

    Args:
      config: the run's configuration.
      batch: returns nested `tf.TensorSpec`s of a batch of training; called where it is needed.
      compiled: False leaves a model that is built by its layers' inputs as its `_target_` made it.

    Raises:
      ConfigError, UserCodeError: when it cannot be built so.
    """
    with _as_for_the_graph(config), dtype_policy(config):
        model: Any = build_model(config)
        if not isinstance(model, keras.Model):
            raise ConfigError(
                Problem(
                    "the run has no Keras model",
                    f"{config.model['_target_']} is not a keras.Model",
                    "use hooks in place of callbacks, mode=export to export it, and no `proof`",
                )
            )
        own_steps = takes_its_own_steps(model)
        if compiled and not own_steps:
            _compile(config, model)
        if model.built and not compiled:
            return model
        step = model.train_step if own_steps else lambda data: model(features_of(data))
        with calling("model", f"{config.model['_target_']} was built eagerly"):
            # Tracing creates the variables, and computes nothing.
            tf.function(step, autograph=False).get_concrete_function(batch())
            if compiled and not own_steps and model.optimizer is not None:
                model.optimizer.build(model.trainable_variables)
    return model


@contextmanager
def _as_for_the_graph(config: RunConfig) -> Iterator[None]:
    """Counts names and seeds from the start, as a new graph does, and restores random states."""
    states = random.getstate(), np.random.get_state()
    keras.utils.clear_session()
    keras.utils.set_random_seed(config.seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


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

    def of_group(group: str) -> Any:
        nodes = getattr(config, group)
        key, of_outputs, flat = f"{group}.{{}}", {}, []
        for name, node in nodes.items():
            if isinstance(node, Mapping) and "_target_" not in node:
                of_outputs[name] = [
                    _renamed(inner, resolved("metric", key.format(inner), item))
                    for inner, item in node.items()
                ]
            else:
                flat.append(_renamed(name, resolved("metric", key.format(name), node)))
        return of_outputs or flat or None

    return {
        "loss": resolved("loss", "loss", config.loss),
        "loss_weights": config.loss_weights or None,
        "metrics": of_group("metrics"),
        "weighted_metrics": of_group("weighted_metrics"),
    }


def _renamed(name: str, metric: Any) -> Any:
    """Returns a metric that has a name of the configuration, where it is a function."""
    known = isinstance(metric, str | keras.metrics.Metric)
    return metric if known else keras.metrics.MeanMetricWrapper(metric, name)


def _optimizer(config: RunConfig) -> keras.optimizers.Optimizer:
    """Returns the configured optimizer; in place of TensorFlow's, one with its learning rate."""
    node = config.optimizer
    target = locate_target("optimizer", node)
    of_tensorflow = isinstance(target, type) and issubclass(target, tf.compat.v1.train.Optimizer)
    if not of_tensorflow and not has_reference(node):
        optimizer: keras.optimizers.Optimizer = build_target("optimizer", node)
        return optimizer
    rate = node.get("learning_rate")
    if not isinstance(rate, int | float):  # Keras refuses to set the rate of such an optimizer.
        rate = keras.optimizers.schedules.PolynomialDecay(1.0, 1)
    return keras.optimizers.SGD(rate)


def eager_twin(
    config: RunConfig, source: TrainingInput, variables: Mapping[str, tf.Variable]
) -> EagerTwin:
    """Builds the eager twin of the model that trains with a training input."""
    model: Any = built_again(config, lambda: source.element_spec)
    if not takes_its_own_steps(model):
        with calling("model", f"{config.model['_target_']} was evaluated eagerly, for callbacks"):
            # Callbacks read the metrics, which are created when they are used.
            tf.function(model.test_step, autograph=False).get_concrete_function(source.element_spec)
    return EagerTwin(model, variables)


class EagerTwin:
    """A model's eager twin, whose variables take the values of a session, and give them back.

    Args:
      model: built again, eagerly.
      variables: name -> variable of the graph.

    Attributes:
      model: the model.

    Raises:
      ConfigError: when a variable of the model is not in the graph.
    """

    def __init__(self, model: keras.Model, variables: Mapping[str, tf.Variable]) -> None:
        self.model = model
        named = keras_variables(model)
        missing = sorted(set(named) - set(variables))
        if missing:
            raise ConfigError(
                Problem(
                    f"callbacks: the model, built again, has {missing[0]}, which the run lacks",
                    "its `_target_` names layers in another way when it is called again",
                    "give the layers names",
                )
            )
        named |= state_of_optimizers(model, named)
        own_rate = f"{type(model.optimizer).__name__}/{LEARNING_RATE}"
        if own_rate in named and own_rate not in variables:
            named[RATE] = named[own_rate]  # The configuration's rate is a variable of the run.
        self._pairs = {
            name: (variables[name], tensorflow_variable(variable))
            for name, variable in named.items()
            if name in variables
        }
        self._light = [
            name for name, (variable, _) in self._pairs.items() if _is_light(name, variable)
        ]
        # Name -> the value of the session that the twin took.
        self._taken: dict[str, NDArray[Any]] = {}

    def forget(self) -> None:
        """Notes that the session has other values."""
        self._taken = {}

    def pull(self, session: tf.compat.v1.Session, *, weights: bool) -> None:
        """Takes values of the session that it does not have yet: counters and rates, or all."""
        names = self._pairs if weights else self._light
        wanted = [name for name in names if name not in self._taken]
        values = session.run([self._pairs[name][0] for name in wanted]) if wanted else []
        for name, value in zip(wanted, values, strict=True):
            self._pairs[name][1].assign(value)
            self._taken[name] = value

    def push(self, session: tf.compat.v1.Session) -> bool:
        """Gives the session what callbacks have changed; returns whether that is anything."""
        changed = {}
        for name, taken in self._taken.items():
            value = self._pairs[name][1].numpy()
            # By their bytes, as NaN differs from itself.
            if not np.array_equal(np.ravel(value).view(np.uint8), np.ravel(taken).view(np.uint8)):
                changed[name] = value
        load(session, ((self._pairs[name][0], value) for name, value in changed.items()))
        self._taken |= changed
        return bool(changed)


def load(session: tf.compat.v1.Session, values: Iterable[tuple[tf.Variable, Any]]) -> None:
    """Assigns values to variables of a session, without operations of their own.

    The initial value of a variable is fed, a tensor that variables may share.
    """
    feeds: dict[str, Any] = {}
    operations: list[tf.Operation] = []
    for variable, value in values:
        tensor = variable.initializer.inputs[1].name
        if tensor in feeds:
            session.run(operations, feeds)
            feeds, operations = {}, []
        feeds[tensor] = value
        operations.append(variable.initializer)
    if operations:
        session.run(operations, feeds)


def state_of_optimizers(model: keras.Model, named: Mapping[str, Any]) -> dict[str, Any]:
    """Returns name in the graph -> variable of the optimizers of a model; `named` are its own."""
    own_steps = takes_its_own_steps(model)
    names = {id(tensorflow_variable(variable)): name for name, variable in named.items()}

    def owner(variable: Any) -> str:
        return names.get(id(tensorflow_variable(variable)), "")

    state: dict[str, Any] = {}
    for attribute, optimizer in optimizers_of(model):
        prefix = attribute if own_steps else type(optimizer).__name__
        state.update((name, variable) for variable, name in named_state(optimizer, prefix, owner))
    return state


def _is_light(name: str, variable: tf.Variable) -> bool:
    return name.endswith((LEARNING_RATE, "/iterations")) and variable.shape.rank == 0
