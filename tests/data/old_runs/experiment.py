"""The experiment of the recorded runs: its module, classes and arguments stay as they are.

A run is found again by its configuration, in which they are named.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# The next line of it says what the next run that gets that far does.
FAULTS = Path("faults")
# Is there as long as a run waits.
WAITING = Path("waiting")


class Points:
    """Points with whole coordinates, labelled with a sum of them.

    With learning rates that are powers of two, and losses whose gradient is a sign, all weights
    are small multiples of such a power. No sum of them is ever rounded, so that every processor,
    with any number of threads, computes the same ones.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def _split(self, seed: int, count: int) -> tf.data.Dataset:
        generator = np.random.default_rng(seed)
        features = generator.integers(-2, 3, (count, 4)).astype(np.float32)
        labels = features @ np.array([[3], [-1], [2], [5]], np.float32)
        options = tf.data.Options()
        options.autotune.enabled = False
        return tf.data.Dataset.from_tensor_slices((features, labels)).with_options(options)

    def sizes(self) -> dict[str, int]:
        return {"train": 32, "validation": 16, "test": 16}

    def train(self) -> tf.data.Dataset:
        return self._split(1, 32).shuffle(32, seed=self.seed).repeat().batch(8)

    def validation(self) -> tf.data.Dataset:
        return self._split(2, 16).batch(8)

    def test(self) -> tf.data.Dataset:
        return self._split(3, 16).batch(8)


class Sum(keras.Model):
    """The sum of what two linear layers make of a point, one of them with dropout.

    Args:
      units: of that one.
      offset: whether a number is added.
    """

    def __init__(self, units: int = 2, offset: bool = False) -> None:
        super().__init__(name="sum")
        self.body = keras.layers.Dense(units, kernel_initializer="ones", name="body")
        self.drop = keras.layers.Dropout(0.5, name="drop")
        self.head = keras.layers.Dense(1, kernel_initializer="zeros", name="head")
        self.offset: Any = None
        if offset:
            self.offset = self.add_weight(shape=(1,), initializer="zeros", name="offset")

    def call(self, features: Any, training: bool = False) -> Any:
        hidden = self.drop(self.body(features), training=training)
        outputs = self.head(features) + keras.ops.sum(hidden, axis=-1, keepdims=True)
        return outputs if self.offset is None else outputs + self.offset


class Fault(tf.compat.v1.train.SessionRunHook):
    """After a step, fails or waits if the file `faults` says so."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        if run_context.session.run(tf.compat.v1.train.get_global_step()) != self.step:
            return
        if not FAULTS.exists():
            return
        fault, _, others = FAULTS.read_text().partition("\n")
        FAULTS.write_text(others)
        if fault == "fail":
            raise ValueError("the hook failed")
        if fault == "wait":
            WAITING.touch()
            while WAITING.exists():
                time.sleep(0.02)
