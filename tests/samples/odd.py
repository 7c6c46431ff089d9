"""Data and models that show one property each, or break the contract of an experiment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from runner.config.instantiation import build_target
from tests.samples.experiment import Blobs


class Ones:
    """Features and labels that are always 1."""

    def train(self) -> tf.data.Dataset:
        return self.test().repeat()

    def validation(self) -> tf.data.Dataset:
        return self.test()

    def test(self) -> tf.data.Dataset:
        features = np.ones((16, 64), np.float32)
        return tf.data.Dataset.from_tensor_slices((features, np.ones(16, np.float32))).batch(8)


class Slow(Blobs):
    """Batches that come slowly."""

    def train(self) -> tf.data.Dataset:
        return _each_after(super().train(), lambda: time.sleep(0.05))


class Held(Blobs):
    """Batches that wait for a test.

    Training batches come slowly as long as the file `slow` exists; the first validation batch makes
    the file `evaluating`, and waits until it is gone.
    """

    def train(self) -> tf.data.Dataset:
        def wait() -> None:
            if Path("slow").exists():
                time.sleep(0.1)

        return _each_after(super().train(), wait)

    def validation(self) -> tf.data.Dataset:
        def wait() -> None:
            evaluating = Path("evaluating")
            evaluating.touch()
            while evaluating.exists():
                time.sleep(0.02)

        batches = super().validation()
        return _each_after(batches.take(1), wait).concatenate(batches.skip(1))


def _each_after(batches: tf.data.Dataset, wait: Callable[[], None]) -> tf.data.Dataset:
    """Returns batches of which each is given after `wait`."""

    def waited() -> np.int64:
        wait()
        return np.int64(0)

    def held(features: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        nothing = tf.ensure_shape(tf.numpy_function(waited, [], tf.int64), [])
        return features, labels + nothing

    return batches.map(held)


class Plain(keras.Model):
    """Layers without random or moving state."""

    def __init__(self) -> None:
        super().__init__(name="plain")
        self.body = keras.layers.Dense(4, activation="tanh", name="body")
        self.head = keras.layers.Dense(2, name="head")

    def call(self, features: Any, training: bool = False) -> Any:
        return self.head(self.body(features))


class Dropped(keras.Model):
    """The features through dropout, times a weight of 1."""

    def __init__(self) -> None:
        super().__init__(name="dropped")
        self.drop = keras.layers.Dropout(0.5)
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

    def call(self, features: Any, training: bool = False) -> Any:
        return self.drop(features, training=training) * self.scale


def two_branches() -> keras.Model:
    """A model whose layers are not in the order in which they are created."""
    features = keras.Input((8,))
    second = keras.layers.Dense(4, name="second")(features)
    first = keras.layers.Dense(4, name="first")(features)
    joined = keras.layers.Concatenate()([first, second])
    return keras.Model(features, keras.layers.Dense(2, name="head")(joined), name="branches")


class Sum:
    """A metric: the sum of an example's outputs."""

    def __call__(self, labels: Any, outputs: Any) -> tf.Tensor:
        return tf.reduce_sum(outputs, axis=-1)


class Undefined:
    """A metric that is NaN for each example, and so is its derivative."""

    def __call__(self, labels: Any, outputs: Any) -> tf.Tensor:
        nothing = tf.reduce_sum(outputs, axis=-1) * 0.0
        return nothing / nothing


class Regularised(keras.Model):
    """A dense layer whose penalty is far larger than its loss."""

    def __init__(self) -> None:
        super().__init__(name="regularised")
        self.dense = keras.layers.Dense(2, kernel_regularizer=keras.regularizers.L2(1e4))

    def call(self, features: Any, training: bool = False) -> Any:
        return self.dense(features)


class Twins(keras.Model):
    """Two layers of one name."""

    def __init__(self) -> None:
        super().__init__(name="twins")
        self.first = keras.layers.Dense(4, name="same")
        self.second = keras.layers.Dense(2, name="same")

    def call(self, features: Any, training: bool = False) -> Any:
        return self.second(self.first(features))


class Structured(Ones):
    """Features and labels of several tensors."""

    def test(self) -> tf.data.Dataset:
        column = np.ones((4, 1), np.float32)
        features = {"left": column, "right": column * 2}
        labels = {"sum": column * 3.5}
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(2)


class OfStructure(keras.Model):
    """Adds two features, one of them times a weight of 1."""

    def __init__(self) -> None:
        super().__init__(name="of_structure")
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

    def call(self, features: Any, training: bool = False) -> Any:
        return {"sum": features["left"] * self.scale + features["right"]}


class StructuredLoss:
    """The squared error of `sum`."""

    def __call__(self, labels: Any, outputs: Any) -> tf.Tensor:
        return tf.square(labels - outputs)


class PlainModel:
    """A model that is no Keras model, over a variable it makes itself."""

    def __init__(self) -> None:
        self.weights = tf.compat.v1.get_variable("plain", [8, 2], use_resource=True)

    def __call__(self, features: Any, training: bool = False) -> Any:
        return tf.matmul(features, self.weights)


class NanInValidation(Blobs):
    """Blobs whose validation features are no numbers."""

    def validation(self) -> tf.data.Dataset:
        return super().validation().map(lambda x, y: (x * np.nan, y))


class NoLabels(Ones):
    """Batches that are not pairs."""

    def train(self) -> tf.data.Dataset:
        return super().train().map(lambda features, labels: features)


class Once(Ones):
    """Training data that do not repeat."""

    def train(self) -> tf.data.Dataset:
        features = np.ones((64, 8), np.float32)
        return tf.data.Dataset.from_tensor_slices((features, np.arange(64) % 2)).batch(8)

    def test(self) -> tf.data.Dataset:
        return self.train()


class Nothing(Ones):
    """Training data of which a filter leaves nothing."""

    def train(self) -> tf.data.Dataset:
        return super().train().take(8).filter(lambda features, label: False)


class NoValidation(Once):
    """An empty validation split."""

    def train(self) -> tf.data.Dataset:
        return super().train().repeat()

    def validation(self) -> tf.data.Dataset:
        return super().train().take(0)


class Rising:
    """Batches of features that are all 1, then all 2, and so on."""

    def train(self) -> tf.data.Dataset:
        return tf.data.Dataset.counter(1).map(lambda number: self._batch(number))

    def validation(self) -> tf.data.Dataset:
        return tf.data.Dataset.range(1, 3).map(lambda number: self._batch(number))

    def test(self) -> tf.data.Dataset:
        return self.validation()

    def _batch(self, value: Any) -> tuple[tf.Tensor, tf.Tensor]:
        features = tf.fill([4, 1], tf.cast(value, tf.float32))
        return features, features


class Linear(keras.Model):
    """The features times a weight that starts at 0."""

    def __init__(self) -> None:
        super().__init__(name="linear")
        self.weight = self.add_weight(name="weight", shape=(), initializer="zeros")

    def call(self, features: Any, training: bool = False) -> Any:
        return features * self.weight


def fixed_descent() -> Any:
    """Gradient descent whose learning rate nothing sets."""
    return tf.compat.v1.train.GradientDescentOptimizer(0.1)


class Generated(Blobs):
    """Training data from a Python generator, whose position TensorFlow cannot save."""

    def train(self) -> tf.data.Dataset:
        def examples() -> Iterator[tuple[np.ndarray, int]]:
            generator = np.random.default_rng(self.seed)
            while True:
                label = int(generator.integers(2))
                yield generator.normal(label, 1.0, 8).astype(np.float32), label

        signature = (tf.TensorSpec([8], tf.float32), tf.TensorSpec([], tf.int64))
        dataset = tf.data.Dataset.from_generator(examples, output_signature=signature)
        return dataset.batch(self.batch_size)


def plain(features: Any, training: bool = False) -> Any:
    """A function, which is no Keras model."""
    return features


def halved(step: Any) -> Any:
    """A learning rate that is halved at every step."""
    return 0.5 ** tf.cast(step, tf.float32)


class Recurrent(keras.Model):
    """A recurrent layer over the features, one a step."""

    def __init__(self) -> None:
        super().__init__(name="recurrent")
        self.layer = keras.layers.SimpleRNN(4, name="layer")
        self.head = keras.layers.Dense(2, name="head")

    def call(self, features: Any, training: bool = False) -> Any:
        return self.head(self.layer(features[:, :, None], training=training))


def digits(labels: Any, outputs: Any) -> Any:
    """A metric that XLA cannot compile."""
    return tf.cast(tf.strings.length(tf.strings.as_string(labels)), tf.float32)


def bias_spared(learning_rate: Any, decay: float) -> Any:
    """An optimizer of Keras that is more than its arguments."""
    optimizer = keras.optimizers.AdamW(learning_rate, weight_decay=decay)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


class Halved(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of one's own: half the rate after each step."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> tf.Tensor:
        return self.rate * 0.5 ** tf.cast(step, tf.float32)

    def get_config(self) -> dict[str, Any]:
        return {"rate": self.rate}


def any_rate() -> Any:
    """An optimizer of Keras whose learning rate is a function."""
    return keras.optimizers.SGD(_steady)


def _steady() -> float:
    return 0.1


def compiled(optimizer: Any) -> keras.Model:
    """A compiled model of the tiny experiment."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2, name="head")], name="net")
    model.compile(build_target("optimizer", optimizer), "sparse_categorical_crossentropy")
    return model


def own_rate() -> Any:
    """An optimizer of Keras whose learning rate is a variable."""
    return keras.optimizers.Adam(learning_rate=0.01)
