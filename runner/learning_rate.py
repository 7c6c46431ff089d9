"""The learning rate as a tensor of the global step."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from runner.errors import ConfigError
from runner.rate_validation import KEY, no_rate, rate_problems
from runner.references import References
from runner.targets import build_target, locate_target


def learning_rate(optimizer: Mapping[str, Any], global_step: tf.Tensor) -> tf.Tensor | None:
    """Returns the learning rate, a float32 scalar; None when the optimizer's target takes none.

    Args:
      optimizer: the optimizer's configuration. Its `learning_rate`, by default that of the target,
        is a number; or the `_target_` of a schedule: a class of `keras.optimizers.schedules`, any
        callable of the step, or a `tf.compat.v1.train` function such as `exponential_decay` with
        `global_step: ${graph:global_step}`.
      global_step: the global step before the train op has run.

    Raises:
      ConfigError: when it is neither, or a target does not fit.
    """
    problems = rate_problems(optimizer)
    if problems:
        raise ConfigError(*problems)
    rate = node = optimizer.get("learning_rate", _default_rate(optimizer))
    if node is None:
        return None
    if isinstance(node, Mapping):
        rate = build_target(KEY, node, References({"graph": {"global_step": global_step}}))
        if callable(rate):
            rate = rate(global_step)
    try:
        return tf.convert_to_tensor(rate, tf.float32, name="learning_rate")
    except (TypeError, ValueError) as error:
        raise ConfigError(no_rate(node)) from error


def _default_rate(optimizer: Mapping[str, Any]) -> Any:
    """Returns the default of the target's `learning_rate`; None when it has none."""
    target = locate_target("optimizer", optimizer)
    parameter = inspect.signature(target).parameters.get("learning_rate")
    if parameter is None or parameter.default is inspect.Parameter.empty:
        return None
    return parameter.default
