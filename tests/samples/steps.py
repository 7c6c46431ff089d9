"""Keras models that take their own steps, in the style of keras.io's programs, and their data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

EXAMPLES, BATCH = 48, 8


class Numbers:
    """Batches of four features; `labelled` gives a class with each."""

    def __init__(self, labelled: bool = True) -> None:
        self.labelled = labelled

    def _split(self, seed: int) -> tf.data.Dataset:
        features = np.random.default_rng(seed).normal(size=(EXAMPLES, 4)).astype(np.float32)
        if not self.labelled:
            return tf.data.Dataset.from_tensor_slices(features)
        labels = (features.sum(axis=1) > 0).astype(np.int32)
        return tf.data.Dataset.from_tensor_slices((features, labels))

    def train(self) -> tf.data.Dataset:
        return self._split(1).repeat().batch(BATCH)

    def validation(self) -> tf.data.Dataset:
        return self._split(2).batch(BATCH)

    def test(self) -> tf.data.Dataset:
        return self._split(3).batch(BATCH)


def dense(*sizes: int, name: str, dropout: float = 0.0) -> keras.Sequential:
    """A small network; the first size is that of the input."""
    hidden = [layers.Dense(size, "tanh") for size in sizes[1:-1]]
    dropped = [layers.Dropout(dropout, seed=4)] if dropout else []
    return keras.Sequential(
        [keras.Input((sizes[0],)), *hidden, *dropped, layers.Dense(sizes[-1])], name=name
    )


class GAN(keras.Model):
    """Two optimizers, apply_gradients over parts of the weights, no loss and no evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator = dense(4, 8, 1, name="discriminator", dropout=0.3)
        self.generator = dense(2, 8, 4, name="generator")
        self.seed = keras.random.SeedGenerator(1)
        self.d_loss, self.g_loss = (keras.metrics.Mean(name=name) for name in ("d_loss", "g_loss"))

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss, self.g_loss]

    def train_step(self, real: Any) -> Mapping[str, Any]:
        noise = keras.random.normal((tf.shape(real)[0], 2), seed=self.seed)
        with tf.GradientTape() as tape:
            fake = self.generator(noise, training=True)
            logits = [self.discriminator(each, training=True) for each in (real, fake)]
            d_loss = tf.reduce_mean(tf.nn.softplus(-logits[0]) + tf.nn.softplus(logits[1]))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            fake = self.discriminator(self.generator(noise, training=True), training=True)
            g_loss = tf.reduce_mean(tf.nn.softplus(-fake))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


def gan() -> keras.Model:
    model = GAN()
    model.compile(keras.optimizers.Adam(1e-2), keras.optimizers.RMSprop(1e-2))
    return model


class Sampling(layers.Layer):
    """Samples with a seed generator of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(2)

    def call(self, mean: Any, scale: Any) -> Any:
        return mean + tf.exp(0.5 * scale) * keras.random.normal(tf.shape(mean), seed=self.seed)


class VAE(keras.Model):
    """The variational autoencoder of keras.io: one optimizer, three tracked metrics, no call."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = dense(4, 8, 4, name="encoder"), dense(2, 8, 4, name="decoder")
        self.sampling = Sampling()
        self.trackers = [keras.metrics.Mean(name=name) for name in ("loss", "error", "divergence")]

    @property
    def metrics(self) -> list[Any]:
        return self.trackers

    def losses_of(self, data: Any) -> list[Any]:
        mean, scale = tf.split(self.encoder(data), 2, axis=1)
        error = tf.reduce_mean(
            tf.reduce_sum((self.decoder(self.sampling(mean, scale)) - data) ** 2, 1)
        )
        divergence = tf.reduce_mean(-0.5 * tf.reduce_sum(1 + scale - mean**2 - tf.exp(scale), 1))
        return [error + divergence, error, divergence]

    def train_step(self, data: Any) -> Mapping[str, Any]:
        with tf.GradientTape() as tape:
            losses = self.losses_of(data)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(losses[0], weights), weights, strict=True))
        return self.tracked(losses)

    def test_step(self, data: Any) -> Mapping[str, Any]:
        return self.tracked(self.losses_of(data))

    def tracked(self, losses: list[Any]) -> Mapping[str, Any]:
        for tracker, loss in zip(self.trackers, losses, strict=True):
            tracker.update_state(loss)
        return {tracker.name: tracker.result() for tracker in self.trackers}


def vae() -> keras.Model:
    model = VAE()
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    return model


class EagerOnly(VAE):
    """A step that reads a value, which no graph can."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def train_step(self, data: Any) -> Mapping[str, Any]:
        loss = tf.reduce_mean(data)
        ways: Mapping[str, Callable[[], Any]] = {
            "numpy": lambda: loss.numpy(),
            "float": lambda: float(loss),
            "if": lambda: 1.0 if loss > 0 else 2.0,
            "loop": lambda: list(data),
            "array": lambda: np.asarray(loss),
            "rate": lambda: float(self.optimizer.learning_rate),
            "variable": lambda: self.trainable_variables[0].numpy(),
        }
        return {"loss": ways[self.way]()}


def eager_only(way: str) -> keras.Model:
    model = EagerOnly(way)
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    return model


class Logging(VAE):
    """Returns other than a flat mapping of scalars from its training step."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def train_step(self, data: Any) -> Any:
        loss = super().train_step(data)["loss"]
        returned: Mapping[str, Any] = {
            "nothing": None,
            "larger": {"each": tf.stack([loss, loss])},
            "metric": {"loss": self.trackers[0]},
            "string": {"loss": "low"},
            "nested": {"parts": {"error": loss, "deep": {"norm": 1}}, "loss": loss},
        }
        return returned[self.kind]


def logging(kind: str, **settings: Any) -> keras.Model:
    model = Logging(kind)
    model.compile(optimizer=keras.optimizers.Adam(1e-2), **settings)
    return model


class CompiledParts(GAN):
    """Each part is compiled with its optimizer."""

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        keras.Model.compile(self)
        self.discriminator.compile(d_optimizer)
        self.generator.compile(g_optimizer)

    @property
    def d_optimizer(self) -> Any:
        return self.discriminator.optimizer

    @property
    def g_optimizer(self) -> Any:
        return self.generator.optimizer


def compiled_parts() -> keras.Model:
    model = CompiledParts()
    model.compile(keras.optimizers.Adam(1e-2), keras.optimizers.RMSprop(1e-2))
    return model


class Lookahead(keras.optimizers.SGD):
    """Creates slots as zeros, and gives them the weights in its `build`."""

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.slow = [self.add_variable_from_reference(weight, "slow") for weight in variables]
        for slow, weight in zip(self.slow, variables, strict=True):
            slow.assign(weight)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        slow = self.slow[self._get_variable_index(variable)]
        self.assign_add(slow, 0.5 * (variable - slow))


def lookahead() -> keras.Model:
    """A model whose kernels are large enough for their slots to be freed."""
    model = dense(4, 300, 1, name="ahead")
    model.compile(Lookahead(0.1), "mse")
    return model


def unbuilt() -> keras.Model:
    """A model that has no variables before its first call."""
    model = keras.Sequential([layers.Dense(3, name="hidden"), layers.Dense(1, name="out")])
    model.compile("sgd", "mse")
    return model
