"""Builds the optimizer of a configuration, and its learning rate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from runner.config.composition import default_optimizer
from runner.config.instantiation import References, build_target, locate_target
from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.internals.tensorflow1_optimizers import TensorFlow1Optimizer
from runner.system.user_code import calling

_RATE_KEY = "optimizer.learning_rate"


def build_optimizer(config: RunConfig, step: tf.Variable) -> keras.optimizers.Optimizer:
    """Builds the configured optimizer, or the default; one of TensorFlow 1 becomes one of Keras.

    Raises:
      ConfigError: when it is no optimizer.
    """
    named = "_target_" in config.optimizer
    node = config.optimizer if named else {**default_optimizer(), **config.optimizer}
    rate = _learning_rate(node, step)
    target = locate_target("optimizer", node)
    if isinstance(target, type) and issubclass(target, tf.compat.v1.train.Optimizer):
        return _tensorflow1_optimizer(node, rate)
    changes = {} if rate is None else {"learning_rate": "${graph:learning_rate}"}
    references = References({"graph": {"global_step": step, "learning_rate": rate}})
    optimizer = build_target("optimizer", {**node, **changes}, references)
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return optimizer
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):  # A function has made it.
        return _tensorflow1_optimizer(node, rate)
    raise ConfigError.of(
        f"optimizer: {node['_target_']} is not an optimizer",
        "it must be a keras.optimizers.Optimizer or a tf.compat.v1.train.Optimizer",
        "for example keras.optimizers.AdamW",
    )


def _learning_rate(node: Mapping[str, Any], step: tf.Variable) -> Any:
    """Returns the configured learning rate as Keras takes one; None without one.

    It is a number, a schedule of Keras, or a function without arguments, to which a function of the
    global step is made.

    Raises:
      ConfigError: when it is something else.
    """
    rate = node.get("learning_rate", _default_rate(node))
    if isinstance(rate, Mapping) and "_target_" in rate:
        references = References({"graph": {"global_step": step}})
        rate = build_target(_RATE_KEY, rate, references)
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            return rate
        if callable(rate):
            return FunctionRate(rate, step)
    if rate is None or (isinstance(rate, int | float) and not isinstance(rate, bool)):
        return rate
    if tf.is_tensor(rate):
        return float(rate)
    raise ConfigError.of(
        f"{_RATE_KEY} is {node.get('learning_rate')!r}",
        "it is neither a number nor a schedule",
        "for example 1e-3, or +schedule@optimizer.learning_rate=cosine",
    )


class FunctionRate(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that a function computes of the global step.

    Args:
      function: takes the global step, an int64 scalar, or nothing, as the decays of
        `tf.compat.v1.train` when they are called eagerly.
      step: the global step.
    """

    def __init__(self, function: Callable[..., Any], step: tf.Variable) -> None:
        self._function, self._step = function, step
        self._takes_step = bool(inspect.signature(function).parameters)

    def __call__(self, step: Any) -> tf.Tensor:
        """Returns the rate at the global step, whatever the optimizer has counted."""
        with calling(_RATE_KEY):
            arguments = [self._step.read_value()] if self._takes_step else []
            return tf.cast(self._function(*arguments), tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Raises: a function has no configuration."""
        raise NotImplementedError("a learning rate that is a function cannot be saved")


def _default_rate(node: Mapping[str, Any]) -> Any:
    """Returns the default of the target's `learning_rate`; None when it has none."""
    target = locate_target("optimizer", node)
    parameter = inspect.signature(target).parameters.get("learning_rate")
    if parameter is None or parameter.default is inspect.Parameter.empty:
        return None
    return parameter.default


def _tensorflow1_optimizer(node: Mapping[str, Any], rate: Any) -> TensorFlow1Optimizer:
    """Builds an optimizer of TensorFlow 1, whose rate Keras computes if it takes one."""
    others = {name: value for name, value in node.items() if name != "learning_rate"}

    def make(current: Any) -> Any:
        rates = {} if rate is None else {"learning_rate": "${graph:learning_rate}"}
        names = {"graph": {"learning_rate": current}}
        return build_target("optimizer", {**others, **rates}, References(names))

    return TensorFlow1Optimizer(make, 0.0 if rate is None else rate, has_rate=rate is not None)
