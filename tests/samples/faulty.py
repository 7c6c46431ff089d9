"""Code of an experiment that raises, each in its own way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.samples.experiment import Blobs


class Labels(Blobs):
    """Labels that the loss does not take: `strings`, or of `rank` 2."""

    def __init__(self, kind: str, batch_size: int = 8, seed: int = 0) -> None:
        super().__init__(batch_size, seed)
        self.kind = kind

    def _split(self, split_seed: int, count: int) -> tf.data.Dataset:
        def changed(features: Any, label: Any) -> tuple[Any, Any]:
            strings = self.kind == "strings"
            return features, tf.as_string(label) if strings else tf.fill([1, 2], label)

        return super()._split(split_seed, count).map(changed)


class Breaking(Blobs):
    """A Python generator of batches that raises at batch 3 of the training."""

    def train(self) -> tf.data.Dataset:
        def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for number in range(1, 100):
                yield np.ones([8, 8], np.float32), self._labels(number)

        signature = (tf.TensorSpec([8, 8], tf.float32), tf.TensorSpec([8], tf.int64))
        return tf.data.Dataset.from_generator(batches, output_signature=signature)

    def _labels(self, number: int) -> np.ndarray:
        if number == 3:
            raise KeyError("row 24 has no label")
        return np.zeros(8, np.int64)


class Failing(keras.Model):
    """Raises while it is `called`, or in a step: at `run` time; or returns `nothing`."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when
        self.dense = keras.layers.Dense(2)

    def call(self, features: Any, training: bool = False) -> Any:
        hidden = self._hidden(self.dense(features))
        return None if self.when == "nothing" else hidden

    def _hidden(self, values: Any) -> Any:
        if self.when == "keyed":
            raise KeyError("units")
        if self.when == "called":
            raise RuntimeError("there are too few units")
        if self.when == "nothing":
            return values
        return tf.ensure_shape(tf.reshape(values, [-1, tf.size(values)]), [None, 7])


class Refusing(keras.Model):
    """Raises what is neither a ValueError nor a TypeError as it is made."""

    def __init__(self) -> None:
        raise RuntimeError("no such device") from KeyError("gpu")


class Drift(tf.compat.v1.train.SessionRunHook):
    """Raises after a step; with `rows`, the one that an iterator raises at its end.

    With `limit` it refuses what it is made with.
    """

    def __init__(
        self, rows: int | None = None, limit: float = 1.0, directory: str | None = None
    ) -> None:
        if limit < 0:
            raise ValueError("limit is below 0")
        self.rows = None if rows is None else iter(range(rows))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self.rows is not None:
            next(self.rows)
        else:
            self._check()

    def _check(self) -> None:
        raise ValueError("the drift is 3.5")


class QuittingData(Blobs):
    """Ends the process in place of data."""

    def train(self) -> tf.data.Dataset:
        sys.exit(0)


class QuittingModel(keras.Model):
    """Ends the process as it is made."""

    def __init__(self) -> None:
        sys.exit(5)


class QuittingHook(tf.compat.v1.train.SessionRunHook):
    """Ends the process after a step."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        sys.exit("enough")


class Momentum(keras.optimizers.SGD):
    """Raises in its update."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        raise RuntimeError("no slot of that name")


def graph(mode: str) -> None:
    """A graph of one's own that raises as it is made."""
    raise KeyError("hidden_units")


def none(labels: Any, outputs: Any) -> None:
    """A loss whose author has forgotten the last line."""


def checked(labels: Any, outputs: Any) -> Any:
    """A loss that asserts in a step what does not hold."""
    with tf.control_dependencies([tf.debugging.assert_less(labels, tf.ones([], labels.dtype))]):
        return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def misspelt(labels: Any, outputs: Any) -> Any:
    return labels.shapes


def exact(labels: Any, outputs: Any) -> Any:
    """A metric of booleans."""
    return tf.equal(labels, tf.argmax(outputs, -1))


def hits(labels: Any, outputs: Any) -> Any:
    """The same in whole numbers."""
    return tf.cast(exact(labels, outputs), tf.int32)
