"""Data and models with losses, metrics, weights, inputs and outputs of many kinds."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf


class Weighted:
    """Points in eight dimensions with labels 0 and 1, [batch, 1], and sample weights.

    Args:
      weights: whether the batches have weights.
      parts: whether features, labels and weights are dictionaries of two each.
    """

    def __init__(self, weights: bool = True, parts: bool = False) -> None:
        self._weights, self._parts = weights, parts

    def train(self) -> tf.data.Dataset:
        return self._batches(0, 64).repeat()

    def validation(self) -> tf.data.Dataset:
        return self._batches(1, 20)

    def test(self) -> tf.data.Dataset:
        return self._batches(2, 20)

    def _batches(self, seed: int, count: int) -> tf.data.Dataset:
        generator = np.random.default_rng(seed)
        labels = (np.arange(count) % 2).astype(np.float32)[:, None]
        features = generator.normal(labels, 1.5, (count, 8)).astype(np.float32)
        weights = generator.uniform(0.0, 2.0, count).astype(np.float32)
        batch: tuple[Any, ...] = (features, labels, weights)
        if self._parts:
            batch = (
                {"left": features[:, :3], "right": features[:, 3:]},
                {"sign": labels, "size": features[:, :2]},
                {"sign": weights, "size": weights[::-1].copy()},
            )
        batch = batch if self._weights else batch[:2]
        return tf.data.Dataset.from_tensor_slices(batch).batch(8)


class Words:
    """Sequences of words, padded by zeros, each with the class of every word."""

    def train(self) -> tf.data.Dataset:
        return self.test().repeat()

    def validation(self) -> tf.data.Dataset:
        return self.test()

    def test(self) -> tf.data.Dataset:
        generator = np.random.default_rng(0)
        words = generator.integers(1, 6, (10, 5))
        words[np.arange(5)[None] >= generator.integers(1, 6, (10, 1))] = 0
        return tf.data.Dataset.from_tensor_slices((words, words % 3)).batch(4)


def scored() -> keras.Model:
    """Returns a model with a penalty, from eight features to a probability."""
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(4, "tanh", kernel_regularizer=keras.regularizers.L2(0.1))(inputs)
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden), name="scored")


def half_frozen() -> keras.Model:
    """Returns a model whose base does not train, as is said after it is built."""
    layers = [keras.layers.Dense(4, name="dense"), keras.layers.BatchNormalization(name="norm")]
    base = keras.Sequential(layers, name="base")
    base.build((None, 8))
    base.trainable = False
    return keras.Sequential([keras.Input((8,)), base, keras.layers.Dense(1, name="head")])


def tagged() -> keras.Model:
    """Returns a model of masked sequences."""
    return keras.Sequential(
        [
            keras.layers.Embedding(6, 4, mask_zero=True),
            keras.layers.Dense(3, "softmax"),
        ],
        name="tagged",
    )


def two_by_two(named: bool = True) -> keras.Model:
    """Returns a model of two inputs and two outputs, these by name or in a list."""
    left, right = keras.Input((3,), name="left"), keras.Input((5,), name="right")
    joined = keras.layers.Concatenate()([left, right])
    sign = keras.layers.Dense(1, "sigmoid", name="sign")(joined)
    size = keras.layers.Dense(2, name="size")(joined)
    outputs = {"sign": sign, "size": size} if named else [sign, size]
    return keras.Model({"left": left, "right": right}, outputs, name="two_by_two")


def compiled(**arguments: Any) -> keras.Model:
    """Returns a compiled model."""
    model = scored()
    model.compile(**{"optimizer": "sgd", "loss": "mse", "metrics": ["mae", "accuracy"]} | arguments)
    return model


def scalar(labels: Any, outputs: Any) -> tf.Tensor:
    """A loss that averages by itself."""
    return tf.reduce_mean(keras.losses.mean_squared_error(labels, outputs))


class OwnLoss(keras.Model):
    """A model that computes its own loss, and keeps metrics of its own."""

    def __init__(self) -> None:
        super().__init__(name="own_loss")
        self.dense = keras.layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="tracker")
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, features: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(features)))
        self.seen.update_state(features)
        return self.dense(features)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
    ) -> Any:
        loss = keras.ops.mean(keras.ops.square(y - y_pred))
        self.tracker.update_state(loss)
        return loss + sum(self.losses)


class OwnStep(OwnLoss):
    """A model that makes the function which takes its steps."""

    def make_train_function(self, force: bool = False) -> Any:
        return super().make_train_function(force)
