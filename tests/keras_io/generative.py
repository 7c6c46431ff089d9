"""Generative models: autoencoders, adversarial networks, flows, diffusion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.keras_io.parts import Logged, dense, points, update


def vae_data(seed: int) -> Any:
    return points(seed)


class VAE(Logged):
    """One optimizer, three tracked metrics, no `call` in training."""

    names = ("loss", "error", "divergence")

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = dense(4, 8, 4, name="encoder"), dense(2, 8, 4, name="decoder")
        self.seed = keras.random.SeedGenerator(2)

    def call(self, data: Any) -> Any:
        return self.decoder(ops.split(self.encoder(data), 2, axis=1)[0])

    def losses_of(self, data: Any) -> list[Any]:
        mean, scale = ops.split(self.encoder(data), 2, axis=1)
        noise = keras.random.normal(ops.shape(mean), seed=self.seed)
        decoded = self.decoder(mean + ops.exp(0.5 * scale) * noise)
        error = ops.mean(ops.sum((decoded - data) ** 2, axis=1))
        divergence = ops.mean(-0.5 * ops.sum(1 + scale - mean**2 - ops.exp(scale), axis=1))
        return [error + divergence, error, divergence]

    def train_step(self, data: Any) -> Mapping[str, Any]:
        with tf.GradientTape() as tape:
            losses = self.losses_of(data)
        update(self.optimizer, tape, losses[0], self.trainable_weights)
        return self.tracked(losses)

    def test_step(self, data: Any) -> Mapping[str, Any]:
        return self.tracked(self.losses_of(data))


def vae() -> keras.Model:
    model = VAE()
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    return model


def labelled(seed: int) -> Any:
    features = points(seed)
    return features, (features.sum(axis=1) > 0).astype("int32")


class ConditionalGAN(Logged):
    """Two optimizers, and labels that both networks see."""

    names = ("d_loss", "g_loss")

    def __init__(self) -> None:
        super().__init__()
        self.discriminator = dense(6, 8, 1, name="discriminator", dropout=0.3)
        self.generator = dense(4, 8, 4, name="generator")
        self.seed = keras.random.SeedGenerator(1)

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def call(self, inputs: Any) -> Any:
        return self.generator(inputs)

    def train_step(self, data: Any) -> Mapping[str, Any]:
        real, label = data
        batch, classes = ops.shape(real)[0], ops.one_hot(label, 2)
        noise = keras.random.normal((batch, 2), seed=self.seed)
        fake = self.generator(ops.concatenate([noise, classes], axis=1))
        both = ops.concatenate([fake, real], axis=0)
        both = ops.concatenate([both, ops.tile(classes, (2, 1))], axis=1)
        targets = ops.concatenate([ops.ones((batch, 1)), ops.zeros((batch, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(targets, self.discriminator(both, training=True))
        update(self.d_optimizer, tape, d_loss, self.discriminator.trainable_weights)
        with tf.GradientTape() as tape:
            fake = self.generator(ops.concatenate([noise, classes], axis=1))
            judged = self.discriminator(ops.concatenate([fake, classes], axis=1))
            g_loss = self.loss_fn(ops.zeros((batch, 1)), judged)
        update(self.g_optimizer, tape, g_loss, self.generator.trainable_weights)
        return self.tracked([d_loss, g_loss])


def conditional_gan() -> keras.Model:
    model = ConditionalGAN()
    model.compile(
        d_optimizer=keras.optimizers.Adam(1e-2),
        g_optimizer=keras.optimizers.RMSprop(1e-2),
        loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return model


class WGANGP(Logged):
    """Three updates of the critic a step, by gradients of gradients; no metrics are tracked."""

    def __init__(self) -> None:
        super().__init__()
        self.critic, self.generator = dense(4, 8, 1, name="critic"), dense(2, 8, 4, name="gen")
        self.seed = keras.random.SeedGenerator(1)

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def call(self, noise: Any) -> Any:
        return self.generator(noise)

    def penalty(self, real: Any, fake: Any) -> Any:
        share = keras.random.uniform((ops.shape(real)[0], 1), seed=self.seed)
        mixed = real + share * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(mixed)
            judged = self.critic(mixed, training=True)
        norm = ops.sqrt(ops.sum(tape.gradient(judged, [mixed])[0] ** 2, axis=1))
        return ops.mean((norm - 1.0) ** 2)

    def train_step(self, real: Any) -> Mapping[str, Any]:
        shape = (ops.shape(real)[0], 2)
        for _ in range(3):
            noise = keras.random.normal(shape, seed=self.seed)
            with tf.GradientTape() as tape:
                fake = self.generator(noise, training=True)
                cost = ops.mean(self.critic(fake)) - ops.mean(self.critic(real))
                d_loss = cost + 10.0 * self.penalty(real, fake)
            update(self.d_optimizer, tape, d_loss, self.critic.trainable_variables)
        noise = keras.random.normal(shape, seed=self.seed)
        with tf.GradientTape() as tape:
            g_loss = -ops.mean(self.critic(self.generator(noise, training=True)))
        update(self.g_optimizer, tape, g_loss, self.generator.trainable_variables)
        return {"d_loss": d_loss, "g_loss": g_loss}


def wgan_gp() -> keras.Model:
    model = WGANGP()
    model.compile(keras.optimizers.Adam(1e-2, beta_1=0.5), keras.optimizers.Adam(1e-2, beta_1=0.5))
    return model


def images(seed: int) -> Any:
    drawn = np.random.default_rng(seed).uniform(size=(48, 6, 6, 1)) > 0.5
    return drawn.astype("float32"), drawn.astype("float32")


class MaskedConvolution(layers.Layer):
    """A convolution that sees only the pixels before each: it assigns its kernel in `call`."""

    def __init__(self, kind: str, **arguments: Any) -> None:
        super().__init__()
        self.kind, self.conv = kind, layers.Conv2D(**arguments)

    def build(self, input_shape: Any) -> None:
        self.conv.build(input_shape)
        rows, columns = self.conv.kernel.shape[:2]
        self.mask = np.zeros(self.conv.kernel.shape, "float32")
        self.mask[: rows // 2] = 1.0
        self.mask[rows // 2, : columns // 2 + (self.kind == "B")] = 1.0

    def call(self, inputs: Any) -> Any:
        self.conv.kernel.assign(self.conv.kernel * self.mask)
        return self.conv(inputs)


def pixel_cnn() -> keras.Model:
    inputs = keras.Input((6, 6, 1))
    first = MaskedConvolution("A", filters=4, kernel_size=3, activation="relu", padding="same")
    second = MaskedConvolution("B", filters=4, kernel_size=3, activation="relu", padding="same")
    outputs = layers.Conv2D(1, 1, activation="sigmoid")(second(first(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(5e-3), "binary_crossentropy")
    return model


class RealNVP(Logged):
    """A flow of coupling layers; its loss is the negative likelihood."""

    names = ("loss",)

    def __init__(self) -> None:
        super().__init__()
        self.couplings = [dense(4, 8, 8, name=f"coupling_{index}") for index in range(2)]
        self.masks = [np.array(mask, "float32") for mask in ([0, 1, 0, 1], [1, 0, 1, 0])]

    def call(self, x: Any) -> Any:
        total = 0.0
        for mask, coupling in zip(self.masks, self.couplings, strict=True):
            scale, shift = ops.split(coupling(x * mask), 2, axis=1)
            scale = ops.tanh(scale) * (1 - mask)
            x = mask * x + (1 - mask) * (x * ops.exp(scale) + shift)
            total += ops.sum(scale, axis=1)
        return x, total

    def log_loss(self, data: Any) -> Any:
        y, determinant = self(data)
        return -ops.mean(-0.5 * ops.sum(y**2, axis=1) + determinant)

    def train_step(self, data: Any) -> Mapping[str, Any]:
        with tf.GradientTape() as tape:
            loss = self.log_loss(data)
        update(self.optimizer, tape, loss, self.trainable_variables)
        return self.tracked([loss])

    def test_step(self, data: Any) -> Mapping[str, Any]:
        return self.tracked([self.log_loss(data)])


def real_nvp() -> keras.Model:
    model = RealNVP()
    model.compile(optimizer=keras.optimizers.Adam(1e-3))
    return model


def pairs(seed: int) -> Any:
    return points(seed), points(seed + 10) * 2 + 1


class CycleGAN(keras.Model):
    """Four optimizers, one persistent tape."""

    def __init__(self) -> None:
        super().__init__()
        self.gen_g, self.gen_f = dense(4, 8, 4, name="gen_g"), dense(4, 8, 4, name="gen_f")
        self.disc_x, self.disc_y = dense(4, 8, 1, name="disc_x"), dense(4, 8, 1, name="disc_y")

    def compile(self, optimizers: Mapping[str, Any]) -> None:
        super().compile()
        self.optimizers = dict(optimizers)

    def call(self, x: Any) -> Any:
        return self.gen_g(x)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        x, y = batch
        with tf.GradientTape(persistent=True) as tape:
            fake_y, fake_x = self.gen_g(x, training=True), self.gen_f(y, training=True)
            cycle = ops.mean(ops.abs(self.gen_f(fake_y) - x) + ops.abs(self.gen_g(fake_x) - y))
            same = ops.mean(ops.abs(self.gen_g(y) - y) + ops.abs(self.gen_f(x) - x))
            losses = {
                "gen_g": ops.mean((self.disc_y(fake_y) - 1) ** 2) + 10 * cycle + 5 * same,
                "gen_f": ops.mean((self.disc_x(fake_x) - 1) ** 2) + 10 * cycle + 5 * same,
                "disc_x": ops.mean((self.disc_x(x) - 1) ** 2 + self.disc_x(fake_x) ** 2),
                "disc_y": ops.mean((self.disc_y(y) - 1) ** 2 + self.disc_y(fake_y) ** 2),
            }
        gradients = {
            name: tape.gradient(loss, getattr(self, name).trainable_variables)
            for name, loss in losses.items()
        }
        for name, gradient in gradients.items():
            weights = getattr(self, name).trainable_variables
            self.optimizers[name].apply_gradients(zip(gradient, weights, strict=True))
        return {f"{name}_loss": loss for name, loss in losses.items()}


def cycle_gan() -> keras.Model:
    model = CycleGAN()
    names = ("gen_g", "gen_f", "disc_x", "disc_y")
    model.compile({name: keras.optimizers.Adam(2e-3, beta_1=0.5) for name in names})
    return model


class DDIM(Logged):
    """A network, and another of its moving averages, which `test_step` uses; an adapted layer."""

    names = ("noise_loss", "image_loss")

    def __init__(self) -> None:
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = dense(5, 16, 4, name="network")
        self.ema_network = keras.models.clone_model(self.network)
        self.seed = keras.random.SeedGenerator(3)

    def call(self, inputs: Any) -> Any:
        return self.ema_network(inputs)

    def denoised(self, data: Any, network: Any, training: bool) -> list[Any]:
        data = self.normalizer(data, training=True)
        noise = keras.random.normal(ops.shape(data), seed=self.seed)
        time = keras.random.uniform((ops.shape(data)[0], 1), seed=self.seed)
        signal, rate = ops.cos(1.5 * time), ops.sin(1.5 * time)
        noisy = signal * data + rate * noise
        predicted = network(ops.concatenate([noisy, rate**2], axis=1), training=training)
        image = (noisy - rate * predicted) / signal
        return [ops.mean(ops.abs(noise - predicted)), ops.mean(ops.abs(data - image))]

    def train_step(self, data: Any) -> Mapping[str, Any]:
        with tf.GradientTape() as tape:
            losses = self.denoised(data, self.network, training=True)
        update(self.optimizer, tape, losses[0], self.network.trainable_weights)
        for weight, average in zip(self.network.weights, self.ema_network.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        return self.tracked(losses)

    def test_step(self, data: Any) -> Mapping[str, Any]:
        return self.tracked(self.denoised(data, self.ema_network, training=False))


def ddim() -> keras.Model:
    model = DDIM()
    model.compile(optimizer=keras.optimizers.AdamW(1e-2, weight_decay=1e-3))
    model.normalizer.adapt(points(9) * 3 + 1)
    return model
