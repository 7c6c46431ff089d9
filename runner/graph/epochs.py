"""Epochs of training: their length, and metrics over one, as Keras's callbacks see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.graph.experiment import Sized
from runner.session.session_manager import PLACED_SOFTLY

RATE = "optimizer/learning_rate"
"""The variable of a constant learning rate, which callbacks may change."""


@dataclass(frozen=True)
class EpochMetrics:
    """The logs of an epoch as callbacks see them, and the state of callbacks in a checkpoint.

    Attributes:
      values: metric name -> its value since the beginning of the epoch, after the train op; a
        float32 scalar.
      reset: begins an epoch.
      variables: what the metrics have added up.
      saved: a string scalar in which checkpoints hold the state of the callbacks.
    """

    values: Mapping[str, tf.Tensor]
    reset: tf.Operation
    variables: tuple[tf.Variable, ...]
    saved: tf.Variable


class EpochMeans:
    """The means of metrics over the batches of an epoch, weighted as Keras weights them."""

    def __init__(self) -> None:
        self._means: dict[str, keras.metrics.Mean] = {}

    @property
    def variables(self) -> list[keras.Variable]:
        """The sums of the metrics so far."""
        return [variable for mean in self._means.values() for variable in mean.variables]

    def add(self, totals: Mapping[str, tuple[tf.Tensor, tf.Tensor]]) -> None:
        """Adds a batch: metric name -> sum and count."""
        for name, (total, count) in totals.items():
            if name not in self._means:  # Variables are created once.
                self._means[name] = keras.metrics.Mean(name)
            value = total / tf.cast(count, total.dtype)
            self._means[name].update_state(value, sample_weight=count)

    def results(self) -> dict[str, tf.Tensor]:
        """Returns the means by name: float32 scalars."""
        return {name: mean.result() for name, mean in self._means.items()}


def epoch_metrics(
    values: Mapping[str, tf.Tensor], reset: tf.Operation, variables: Iterable[tf.Variable]
) -> EpochMetrics:
    """Returns the metrics of an epoch, and adds the variable for the state of the callbacks."""
    saved = tf.compat.v1.get_variable("callbacks", initializer="", trainable=False)
    return EpochMetrics(values, reset, tuple(variables), saved)


def in_epochs(
    config: RunConfig, data: Any, batches: tf.data.Dataset, *, per_step: int
) -> tuple[tf.data.Dataset, int | None]:
    """Returns the training data without end, and the length of an epoch in global steps.

    The length is None, and the data as they are, where nothing depends on epochs. A step takes
    `per_step` batches.

    Raises:
      ConfigError: when the length is needed and not known.
    """
    train = config.train
    if not (train.epochs or train.steps_per_epoch or config.callbacks):
        return batches, None
    if train.steps_per_epoch is not None:
        return batches.repeat(), train.steps_per_epoch
    with tf.compat.v1.Session(config=PLACED_SOFTLY) as session:
        count = int(session.run(batches.cardinality()))
    if count <= 0:
        state = f"train.epochs is {train.epochs}" if train.epochs else "callbacks are set"
        endless = "repeats forever" if count == tf.data.INFINITE_CARDINALITY else "has no known end"
        cause = f"the length of an epoch is not known: data.train() {endless}"
        steps = _guess(data, batches)
        raise ConfigError.of(state, cause, f"set train.steps_per_epoch={steps}")
    return batches.repeat(), -(-count // per_step)


def _guess(data: Any, batches: tf.data.Dataset) -> int | str:
    """Returns the steps of one pass if the data tell their sizes, and else `STEPS`."""
    leading = tf.nest.flatten(batches.element_spec)[0].shape[:1]
    batch = getattr(data, "batch_size", None) or (leading[0] if leading.rank else None)
    size = data.sizes().get("train") if isinstance(data, Sized) else None
    return -(-size // batch) if size and batch else "STEPS"
