"""Keras callbacks of one's own, as in keras.io's programs, and what `fit` makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from runner.config.instantiation import build_target
from runner.config.schema import RunConfig

LOSS = keras.losses.SparseCategoricalCrossentropy


class Few:
    """Batches of 40 examples with four features and one of three classes; five batches end."""

    def _split(self, seed: int, count: int = 40) -> tf.data.Dataset:
        numbers = np.random.default_rng(seed)
        features = numbers.normal(size=(count, 4)).astype(np.float32)
        labels = numbers.integers(0, 3, size=count).astype(np.int32)
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(9)

    def train(self) -> tf.data.Dataset:
        return self._split(1)

    def validation(self) -> tf.data.Dataset:
        return self._split(2, 20)

    def test(self) -> tf.data.Dataset:
        return self._split(3, 20)


def net(rate: float = 0.05) -> keras.Model:
    """A compiled network whose initial values are always the same."""
    initializer = keras.initializers.RandomNormal(seed=1)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, "tanh", kernel_initializer=initializer),
            keras.layers.Dense(3, kernel_initializer=initializer),
        ]
    )
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    model.compile(keras.optimizers.Adam(rate), LOSS(from_logits=True), metrics=[accuracy])
    return model


class Stepping(keras.Model):
    """The same network with a `train_step`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def call(self, features: Any) -> Any:
        return self.net(features)

    def train_step(self, data: Any) -> Mapping[str, Any]:
        features, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(features, labels, self(features))
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=tf.shape(labels)[0])
            else:
                metric.update_state(labels, self(features))
        return {metric.name: metric.result() for metric in self.metrics}


def stepping() -> keras.Model:
    model = Stepping()
    model.compile(keras.optimizers.Adam(0.05), LOSS(from_logits=True))
    return model


def recorded(name: str, value: Any) -> Any:
    return float(value)


class Witness(keras.callbacks.Callback):
    """Writes each call with its logs, and what the model predicts, to a file of JSON lines."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = Path(file)
        self.calls = 0

    def write(self, name: str, *values: Any) -> None:
        self.calls += 1
        with self.file.open("a") as stream:
            stream.write(json.dumps([name, self.calls, *values]) + "\n")

    def on_train_begin(self, logs: Any = None) -> None:
        self.write("train begins", self.params["epochs"], self.params["steps"])

    def on_train_end(self, logs: Any = None) -> None:
        self.write("train ends", logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.write("epoch begins", epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        predicted = self.model.predict(np.ones((2, 4), np.float32), verbose=0)
        called = self.model(np.ones((2, 4), np.float32)).numpy()
        np.testing.assert_allclose(predicted, called, rtol=1e-5)
        rate = float(self.model.optimizer.learning_rate)
        self.write("epoch ends", epoch, logs, predicted.tolist(), rate)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.write("batch begins", batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.write("batch ends", batch, logs)

    def on_test_begin(self, logs: Any = None) -> None:
        self.write("test begins")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.write("test batch ends", batch, logs)

    def on_test_end(self, logs: Any = None) -> None:
        self.write("test ends", logs)


class Watching(keras.callbacks.Callback):
    """Holds a variable of the model, and reads it as soon as there is a model."""

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self.kernel = model.trainable_variables[0]
        self.first = float(keras.ops.sum(self.kernel))


class Weights(keras.callbacks.Callback):
    """Writes all weights when an evaluation and an epoch end."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = Path(file)

    def write(self, name: str) -> None:
        values = [weight.tolist() for weight in self.model.get_weights()]
        with self.file.open("a") as stream:
            stream.write(json.dumps([name, values]) + "\n")

    def on_test_end(self, logs: Any = None) -> None:
        self.write("test")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.write("epoch")


class Halve(keras.callbacks.Callback):
    """Halves the kernels after an epoch, by three ways of Keras."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        layer = self.model.layers[0]
        layer = layer.layers[0] if hasattr(layer, "layers") else layer
        if epoch == 0:
            layer.set_weights([weight / 2 for weight in layer.get_weights()])
        elif epoch == 1:
            layer.kernel.assign(layer.kernel / 2)
        else:
            self.model.set_weights([weight / 2 for weight in self.model.get_weights()])


class StopAt(keras.callbacks.Callback):
    """Stops the training in the middle of an epoch."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step, self.seen = step, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if self.seen == self.step:
            self.model.stop_training = True


class Failing(keras.callbacks.Callback):
    """Fails in a method of one's own."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.divide(epoch)

    def divide(self, epoch: int) -> None:
        raise ZeroDivisionError("the callback failed")


def falling(epoch: int, rate: float) -> float:
    """A schedule for LearningRateScheduler."""
    return rate * 0.5 if epoch else rate


def fitted(config: RunConfig, epochs: int) -> keras.Model:
    """Returns a configuration's model trained by `fit` with its callbacks, built eagerly."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(config.seed)
    model: keras.Model = build_target("model", config.model)
    data = build_target("data", config.data)
    callbacks = [build_target(f"callbacks.{key}", node) for key, node in config.callbacks.items()]
    settings = {"epochs": epochs, "callbacks": callbacks, "verbose": 0, "shuffle": False}
    model.fit(data.train(), validation_data=data.validation(), **settings)
    return model
