"""Epochs of training: their length in steps."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.graph.contracts import Sized


def in_epochs(
    config: RunConfig, data: Any, batches: tf.data.Dataset, *, per_step: int
) -> tuple[tf.data.Dataset, int | None]:
    """Returns the training data without end, and the length of an epoch in global steps.

    The length is None, and the data as they are, where nothing depends on epochs. A step takes
    `per_step` batches. Data of which nobody knows where they end are read once, to count them.

    Raises:
      ConfigError: when the length is needed, and the data never end or are empty.
    """
    train = config.train
    if not (train.epochs or train.steps_per_epoch or config.callbacks):
        return batches, None
    if train.steps_per_epoch is not None:
        return batches.repeat(), train.steps_per_epoch
    count = int(batches.cardinality())
    if count == tf.data.UNKNOWN_CARDINALITY and train.epochs:
        count = int(batches.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1))
    if count <= 0:
        state = f"train.epochs is {train.epochs}" if train.epochs else "callbacks are set"
        if count == 0:
            raise ConfigError.of("the training data are empty", "data.train() gives no batch")
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
