"""The learning rate as a tensor of the global step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from runner.errors import ConfigError, Problem
from runner.references import References
from runner.targets import build_target

KEY = "optimizer.learning_rate"


def learning_rate(node: Any, global_step: tf.Tensor) -> tf.Tensor:
    """Returns the learning rate, a float32 scalar.

    Args:
      node: a number; or the `_target_` of a schedule: a class of `keras.optimizers.schedules`, any
        callable of the step, or a `tf.compat.v1.train` function such as `exponential_decay` with
        `global_step: ${graph:global_step}`.
      global_step: the global step before the train op has run.

    Raises:
      ConfigError: when it is neither, or the target does not fit.
    """
    rate = node
    if isinstance(node, Mapping):
        rate = build_target(KEY, node, References({"graph": {"global_step": global_step}}))
        if callable(rate):
            rate = rate(global_step)
    try:
        return tf.convert_to_tensor(rate, tf.float32, name="learning_rate")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            Problem(
                f"{KEY} is {node!r}",
                "it is neither a number nor a schedule",
                "for example 1e-3, or schedule@optimizer.learning_rate=cosine",
            )
        ) from error
