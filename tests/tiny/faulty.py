"""Code of an experiment that raises, each in its own way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.tiny.experiment import Blobs


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
    """Raises while it is `called`, or in a step: at `run` time."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when
        self.dense = keras.layers.Dense(2)

    def call(self, features: Any, training: bool = False) -> Any:
        return self._hidden(self.dense(features))

    def _hidden(self, values: Any) -> Any:
        if self.when == "called":
            raise RuntimeError("there are too few units")
        return tf.ensure_shape(tf.reshape(values, [-1, tf.size(values)]), [None, 7])


class Refusing(keras.Model):
    """Raises what is neither a ValueError nor a TypeError as it is made."""

    def __init__(self) -> None:
        raise RuntimeError("no such device") from KeyError("gpu")


class Drift(tf.compat.v1.train.SessionRunHook):
    """Raises after a step."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._check()

    def _check(self) -> None:
        raise ValueError("the drift is 3.5")


def none(labels: Any, outputs: Any) -> None:
    """A loss whose author has forgotten the last line."""


def misspelt(labels: Any, outputs: Any) -> Any:
    return labels.shapes


def exact(labels: Any, outputs: Any) -> Any:
    """A metric of booleans."""
    return tf.equal(labels, tf.argmax(outputs, -1))


def hits(labels: Any, outputs: Any) -> Any:
    """The same in whole numbers."""
    return tf.cast(exact(labels, outputs), tf.int32)
