"""Data and models of the tiny experiments."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class Blobs:
    """Two clouds of points in eight dimensions.

    After `poison_after` training batches come NaN; after `hang_after` of them none, the file
    `hanging` is made, and the step waits. Where the file `slow_validation` is missing, a validation
    batch makes it and takes a while.
    """

    def __init__(
        self,
        batch_size: int = 8,
        seed: int = 0,
        poison_after: int | None = None,
        hang_after: int | None = None,
        slow_validation: str | None = None,
    ) -> None:
        self.batch_size, self.seed, self.poison_after = batch_size, seed, poison_after
        self.hang_after, self.slow_validation = hang_after, slow_validation

    def _split(self, split_seed: int, count: int) -> tf.data.Dataset:
        generator = np.random.default_rng(split_seed)
        labels = np.arange(count) % 2
        features = generator.normal(labels[:, None], 1.0, (count, 8)).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices((features, labels))

    def sizes(self) -> dict[str, int]:
        return {"train": 64, "validation": 20, "test": 20}

    def train(self) -> tf.data.Dataset:
        batches = self._split(1, 64).shuffle(64, seed=self.seed).repeat().batch(self.batch_size)
        if self.hang_after is not None:

            def hang() -> None:
                Path("hanging").touch()
                time.sleep(600.0)

            forever = batches.map(lambda x, y: (_delayed(x, hang), y))
            return batches.take(self.hang_after).concatenate(forever)
        if self.poison_after is None:
            return batches
        clean = batches.take(self.poison_after)
        return clean.concatenate(batches.map(lambda x, y: (x * np.nan, y)))

    def validation(self) -> tf.data.Dataset:
        batches = self._split(2, 20).batch(self.batch_size)
        if self.slow_validation is None:
            return batches
        marker = Path(self.slow_validation)

        def wait() -> None:
            if not marker.exists():
                marker.touch()
                time.sleep(1.0)

        return batches.map(lambda x, y: (_delayed(x, wait), y))

    def test(self) -> tf.data.Dataset:
        return self._split(3, 20).batch(self.batch_size)


def _delayed(features: tf.Tensor, wait: Callable[[], None]) -> tf.Tensor:
    def delay(array: Any) -> Any:
        wait()
        return array

    return tf.ensure_shape(tf.numpy_function(delay, [features], tf.float32), features.shape)


class Net(keras.Model):
    """A body with batch norm and dropout, and a head; `ballast` only makes checkpoints large."""

    def __init__(self, units: int = 4, extra: bool = False, ballast: int = 0) -> None:
        super().__init__(name="net")
        self.body = keras.Sequential(
            [
                keras.layers.Dense(units, name="dense"),
                keras.layers.BatchNormalization(name="norm"),
                keras.layers.Dropout(0.5, name="drop"),
            ],
            name="body",
        )
        self.extra = keras.layers.Dense(units, name="extra") if extra else None
        self.head = keras.layers.Dense(2, name="head")
        if ballast:
            self.add_weight(shape=(ballast,), trainable=False, name="ballast")

    def call(self, features: Any, training: bool = False) -> Any:
        hidden = self.body(features, training=training)
        return self.head(self.extra(hidden) if self.extra else hidden)
