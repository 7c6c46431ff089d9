"""Epochs of training, by the length of the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from runner.config.epochs import Epochs
from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.graph.contracts import Sized
from runner.internals.datasets import draws_at_start, reads_generator, surely_ends
from runner.internals.keras import begins_ahead


def in_epochs(
    config: RunConfig, data: Any, batches: tf.data.Dataset, *, per_step: int
) -> tuple[tf.data.Dataset, Epochs | None]:
    """Returns the training data without end, and the epochs.

    They are None, and the data as they are, where nothing depends on epochs. A step takes
    `per_step` batches. Data that end, of unknown length, are read once, to count them.

    Raises:
      ConfigError: when the length is needed, and the data never end or are empty.
    """
    train = config.train
    if not (train.epochs or train.steps_per_epoch or config.callbacks):
        return batches, None
    count, length = int(batches.cardinality()), train.steps_per_epoch
    meets_end = count == tf.data.UNKNOWN_CARDINALITY and per_step == 1
    if count == tf.data.UNKNOWN_CARDINALITY and (
        train.epochs if length is None else per_step == 1 and surely_ends(batches)
    ):
        count = int(batches.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1))
    if length is not None:
        of_pass = count if count > 0 and per_step == 1 else None
        epochs = Epochs(length, of_pass, train.initial_epoch, meets_end and of_pass is not None)
        return batches.repeat(), epochs
    if count <= 0:
        state = f"train.epochs is {train.epochs}" if train.epochs else "callbacks are set"
        if count == 0:
            raise ConfigError.of("the training data are empty", "data.train() gives no batch")
        endless = "repeats forever" if count == tf.data.INFINITE_CARDINALITY else "has no known end"
        cause = f"the length of an epoch is not known: data.train() {endless}"
        steps = _guess(data, batches)
        raise ConfigError.of(state, cause, f"set train.steps_per_epoch={steps}")
    passes = batches if meets_end else _passes_of_fit(batches)
    return passes.repeat(), Epochs(-(-count // per_step), None, train.initial_epoch, meets_end)


def _passes_of_fit(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns data of known length whose passes have the orders that those of `fit` have.

    At the end of an epoch `fit` makes an iterator, and another one where the next epoch begins.
    Each draws an order, so that epochs have every second one.
    """
    if not begins_ahead() or not draws_at_start(batches) or reads_generator(batches):
        return batches
    count = batches.cardinality()

    def all_or_none(index: tf.Tensor) -> tf.data.Dataset:
        chosen = tf.data.Dataset.from_tensors(np.int64(0)).repeat(tf.where(index == 0, count, 0))
        # It makes the iterator also where nothing is read from it.
        return tf.data.Dataset.choose_from_datasets([batches], chosen, stop_on_empty_dataset=False)

    both = tf.data.Dataset.range(2).flat_map(all_or_none)
    return both.apply(tf.data.experimental.assert_cardinality(count))


def _guess(data: Any, batches: tf.data.Dataset) -> int | str:
    """Returns the steps of one pass if the data tell their sizes, and else `STEPS`."""
    leading = tf.nest.flatten(batches.element_spec)[0].shape[:1]
    batch = getattr(data, "batch_size", None) or (leading[0] if leading.rank else None)
    size = data.sizes().get("train") if isinstance(data, Sized) else None
    return -(-size // batch) if size and batch else "STEPS"
