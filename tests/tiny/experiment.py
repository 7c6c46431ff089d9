"""Data and models of the tiny experiments."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf


class Blobs:
    """Two clouds of points in eight dimensions."""

    def __init__(self, batch_size: int = 8, seed: int = 0, poison_after: int | None = None) -> None:
        self.batch_size, self.seed, self.poison_after = batch_size, seed, poison_after

    def _split(self, split_seed: int, count: int) -> tf.data.Dataset:
        generator = np.random.default_rng(split_seed)
        labels = np.arange(count) % 2
        features = generator.normal(labels[:, None], 1.0, (count, 8)).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices((features, labels))

    def sizes(self) -> dict[str, int]:
        return {"train": 64, "validation": 20, "test": 20}

    def train(self) -> tf.data.Dataset:
        batches = self._split(1, 64).shuffle(64, seed=self.seed).repeat().batch(self.batch_size)
        if self.poison_after is None:
            return batches
        clean = batches.take(self.poison_after)
        return clean.concatenate(batches.map(lambda x, y: (x * np.nan, y)))

    def validation(self) -> tf.data.Dataset:
        return self._split(2, 20).batch(self.batch_size)

    def test(self) -> tf.data.Dataset:
        return self._split(3, 20).batch(self.batch_size)


class Net(keras.Model):
    """A body with batch norm and dropout, and a head."""

    def __init__(self, units: int = 4, extra: bool = False) -> None:
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

    def call(self, features: Any, training: bool = False) -> Any:
        hidden = self.body(features, training=training)
        return self.head(self.extra(hidden) if self.extra else hidden)
