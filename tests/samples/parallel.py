"""Models in float64 and their data, to be trained on one device and on several."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from runner.internals.keras import activity_losses_are_means

DOUBLE: dict[str, Any] = {"dtype": "float64"}


class Exact(keras.Model):
    """A functional model whose loss keeps the precision of its outputs."""

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> tf.Tensor:
        """Returns a mean of weighted squares over the examples, and what the layers add."""
        errors = [
            tf.reduce_mean(tf.square(output - tf.reshape(y, [-1, *[1] * (output.shape.rank - 1)])))
            for output in tf.nest.flatten(y_pred)
        ]
        if sample_weight is not None:
            rows = tf.reduce_mean(tf.square(y_pred - y[:, tf.newaxis]), 1)
            errors = [tf.reduce_mean(rows * sample_weight)]
        return tf.add_n([*errors, *(tf.cast(loss, tf.float64) for loss in self.losses)])


class Spread(layers.Layer):
    """Adds a loss that is a mean over examples, and counts the examples in a metric."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen = keras.metrics.Sum(name="seen")

    def call(self, inputs: Any) -> Any:
        self.add_loss(0.1 * tf.reduce_mean(tf.square(inputs)))
        self.seen.update_state(tf.ones_like(inputs[:, 0]))
        return inputs


def dense() -> keras.Model:
    """Regularizers of weights and activities, `add_loss`, a metric in a layer."""
    inputs = keras.Input((6,), **DOUBLE)
    # In older versions of Keras, that of an activity is a sum over the examples.
    activity = "l2" if activity_losses_are_means() else None
    hidden = layers.Dense(
        8, "tanh", kernel_regularizer="l2", activity_regularizer=activity, name="hidden", **DOUBLE
    )(inputs)
    return Exact(inputs, layers.Dense(2, name="head", **DOUBLE)(Spread(**DOUBLE)(hidden)))


def active() -> keras.Model:
    """A regularizer of an activity alone."""
    regularized = layers.Dense(2, activity_regularizer="l2", name="head", **DOUBLE)
    return Exact(inputs := keras.Input((6,), **DOUBLE), regularized(inputs))


def norms() -> keras.Model:
    """Convolutions and batch norm, also over a mask."""
    inputs = keras.Input((6,), **DOUBLE)
    maps = layers.Reshape((3, 2, 1), **DOUBLE)(inputs)
    maps = layers.Conv2D(4, 2, padding="same", **DOUBLE)(maps)
    maps = layers.ReLU(**DOUBLE)(layers.BatchNormalization(**DOUBLE)(maps))
    steps = layers.Reshape((6, 1), **DOUBLE)(inputs)
    masked = layers.Masking(0.25, **DOUBLE)(steps)
    masked = layers.BatchNormalization(**DOUBLE)(masked)
    joined = layers.Concatenate(**DOUBLE)([layers.Flatten(**DOUBLE)(maps), masked[:, :, 0]])
    return Exact(inputs, layers.Dense(2, **DOUBLE)(joined))


def recurrent() -> keras.Model:
    """Sparse gradients, and loops."""
    inputs = keras.Input((6,), **DOUBLE)
    tokens = layers.Lambda(lambda values: tf.cast(4 * values, tf.int32), **DOUBLE)(inputs)
    embedded = layers.Embedding(9, 3, name="embedding", **DOUBLE)(tokens)
    states = layers.LSTM(4, **DOUBLE)(embedded)
    return Exact(inputs, layers.Dense(2, **DOUBLE)(states))


def nested() -> keras.Model:
    """Two inputs in a mapping, and two outputs in another."""
    shapes = {"left": (2,), "right": (3, 2)}
    inputs = {name: keras.Input(shape, name=name, **DOUBLE) for name, shape in shapes.items()}
    right = layers.Flatten(**DOUBLE)(inputs["right"])
    joined = layers.Concatenate(**DOUBLE)([inputs["left"], right])
    outputs = {name: layers.Dense(2, **DOUBLE)(joined) for name in ("first", "second")}
    return Exact(inputs, outputs)


def random() -> keras.Model:
    """Dropout from a seed, of features that are all 1."""
    inputs = keras.Input((6,))
    ones = layers.Lambda(tf.ones_like)(inputs)
    return keras.Model(inputs, layers.Dense(6)(layers.Dropout(0.5, seed=3)(ones)))


class Largest(keras.metrics.Metric):
    """A metric whose state is no sum."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros", aggregation="mean", name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(tf.maximum(self.value, tf.reduce_max(y_pred)))

    def result(self) -> Any:
        return self.value


def single() -> keras.Model:
    """In float32, or in the dtype policy of the configuration."""
    inputs = keras.Input((6,))
    hidden = layers.BatchNormalization()(layers.Dense(8, "relu", name="hidden")(inputs))
    return keras.Model(inputs, layers.Dense(2, dtype="float32", name="head")(hidden))


class Critic(keras.Model):
    """A WGAN-GP: parts with optimizers of their own, and the gradient of a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = keras.Sequential(
            [keras.Input((6,)), layers.Dense(5, "tanh"), layers.Dense(1)], name="critic"
        )
        hidden = [layers.Dense(4), layers.BatchNormalization(), layers.ReLU()]
        self.generator = keras.Sequential(
            [keras.Input((2,)), *hidden, layers.Dense(6)], name="generator"
        )

    def train_step(self, real: Any) -> dict[str, Any]:
        # Random numbers would be others on each device.
        noise, share = real[:, :2], real[:, 2:3]
        with tf.GradientTape() as tape:
            fake = self.generator(noise, training=True)
            between = share * real + (1.0 - share) * fake
            with tf.GradientTape() as inner:
                inner.watch(between)
                judged = self.critic(between, training=True)
            slopes = tf.norm(inner.gradient(judged, between), axis=1)
            penalty = 10.0 * tf.reduce_mean((slopes - 1.0) ** 2)
            both = self.critic(fake, training=True) - self.critic(real, training=True)
            loss = tf.reduce_mean(both) + penalty
        weights = self.critic.trainable_weights
        self.c_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            fooled = -tf.reduce_mean(self.critic(self.generator(noise, training=True)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(fooled, weights), weights, strict=True))
        return {"loss": loss, "fooled": fooled, "penalty": penalty}


def critic() -> keras.Model:
    """Compiled without a loss."""
    model = Critic()
    model.compile()
    model.c_optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    model.g_optimizer = keras.optimizers.SGD(0.05)
    return model


class Share(keras.metrics.Metric):
    """The share of examples whose first output is the larger one; a sum and a count."""

    def __init__(self, name: str = "share") -> None:
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(tf.reduce_sum(tf.cast(y_pred[:, 0] > y_pred[:, 1], tf.float32)))
        self.count.assign_add(tf.cast(tf.shape(y_pred)[0], tf.float32))

    def result(self) -> Any:
        return self.total / self.count


class Tuned(layers.Layer):
    """Assigns to a `tf.Variable`, in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = tf.Variable(0.0, trainable=False)

    def call(self, inputs: Any) -> Any:
        self.calls.assign_add(1.0)
        return inputs


def counting() -> keras.Model:
    """A state that several devices cannot share."""
    return keras.Sequential([keras.Input((6,)), Tuned(), layers.Dense(2)])


def unseeded() -> keras.Model:
    """Random numbers from Keras's global seed."""
    inputs = keras.Input((6,))
    noise = layers.Lambda(lambda values: values + keras.random.normal((1, 6)))(inputs)
    return keras.Model(inputs, layers.Dense(2)(noise))


class Examples:
    """Endless batches of 7, 7 and 6 examples with labels; `kind` is their structure or size."""

    def __init__(self, kind: str = "", dtype: str = "float64") -> None:
        self.kind, self.dtype = kind, dtype
        self.size = {"even": 10, "rest of one": 19}.get(kind, 7)

    def _examples(self) -> tf.data.Dataset:
        draw = np.random.default_rng(5)
        features: Any = np.round(2 * draw.random((20, 6)), 2).astype(self.dtype)
        features[::3, 2:4] = 0.25  # What `norms` masks.
        labels = draw.random(20).astype(self.dtype)
        weights = draw.random(20).astype(self.dtype)
        if self.kind == "nested":
            features = {"left": features[:, :2], "right": np.stack([features] * 3, 1)[..., 4:]}
        if self.kind == "classes":
            labels = (labels > 0.5).astype("int32")
        if self.kind == "features":
            return tf.data.Dataset.from_tensor_slices(features).batch(self.size)
        parts = (features, labels, weights) if self.kind == "weighted" else (features, labels)
        return tf.data.Dataset.from_tensor_slices(parts).batch(self.size)

    def train(self) -> tf.data.Dataset:
        return self._examples().repeat()

    def validation(self) -> tf.data.Dataset:
        return self._examples()

    def test(self) -> tf.data.Dataset:
        return self._examples()


def spectral() -> keras.Model:
    """Assigns to a weight that trains, in every call."""
    return keras.Sequential([keras.Input((6,)), layers.SpectralNormalization(layers.Dense(2))])
