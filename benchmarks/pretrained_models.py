"""Models with weights in a file, and the script that trains one with Keras and MLflow alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from benchmarks.first_step import write_first

# Small enough that the first step is not mostly computation.
BATCH, SIDE, TOKENS, VOCABULARY = 4, 64, 32, 30_522


@dataclass(frozen=True)
class Batches:
    """The same batch of a model's random images or token ids, again and again, labelled 0 and 1."""

    name: str

    def train(self) -> tf.data.Dataset:
        """Returns endless batches."""
        of_images = ((SIDE, SIDE, 1 if self.name == "1GB" else 3), 1.0, tf.float32)
        shape, limit, dtype = (
            ((TOKENS,), VOCABULARY, tf.int32) if self.name == "BERT" else of_images
        )
        features = tf.random.stateless_uniform((BATCH, *shape), (1, 2), 0, limit, dtype)
        return tf.data.Dataset.from_tensors((features, tf.range(BATCH) % 2)).repeat()

    def validation(self) -> tf.data.Dataset:
        """Returns one batch."""
        return self.train().take(1)

    test = validation


def bert(*, blocks: int = 12, width: int = 256, heads: int = 4) -> keras.Model:
    """Builds an encoder like BERT, in whose sizes only the width differs from its base model."""
    layers = keras.layers
    ids = keras.Input((TOKENS,), dtype="int32")
    positions = keras.ops.arange(TOKENS, dtype="int32") + 0 * ids
    value = layers.Embedding(VOCABULARY, width, name="tokens")(ids)
    value += layers.Embedding(TOKENS, width, name="positions")(positions)
    value = layers.LayerNormalization(name="norm")(value)
    for number in range(blocks):
        name = f"block{number}_"
        attention = layers.MultiHeadAttention(heads, width // heads, name=f"{name}attention")
        value = layers.LayerNormalization(name=f"{name}norm1")(
            value + layers.Dropout(0.1)(attention(value, value))
        )
        inner = layers.Dense(4 * width, "gelu", name=f"{name}inner")(value)
        value = layers.LayerNormalization(name=f"{name}norm2")(
            value + layers.Dropout(0.1)(layers.Dense(width, name=f"{name}outer")(inner))
        )
    return keras.Model(ids, layers.Dense(2, name="head")(value[:, 0]), name="bert")


def build(name: str) -> keras.Model:
    """Builds a model with two classes and random values.

    `BERT`; `1GB`, which has 16 layers of 64 MB; or a model of `keras.applications`.
    """
    if name == "BERT":
        return bert()
    if name == "1GB":
        wide = [keras.layers.Dense(4096, name=f"wide{number}") for number in range(16)]
        image, head = keras.Input((SIDE, SIDE, 1)), keras.layers.Dense(2, name="head")
        return keras.Sequential([image, keras.layers.Flatten(), *wide, head])
    make: Callable[..., keras.Model] = getattr(keras.applications, name)
    return make(weights=None, input_shape=(SIDE, SIDE, 3), classes=2, classifier_activation=None)


def save(name: str, path: str) -> None:
    """Writes the random values of a model to a `.weights.h5` file."""
    build(name).save_weights(path)


class _First(keras.callbacks.Callback):
    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = file

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        write_first(self._file)
        os._exit(0)  # MLflow's autologging needs TensorBoard for the end of the epoch.


def fit(name: str, path: str, file: str) -> None:
    """Loads the weights, compiles the model and takes a step, with MLflow's autologging."""
    import mlflow

    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.tensorflow.autolog(log_models=False, log_datasets=False)
    keras.utils.set_random_seed(0)
    model = build(name)
    model.load_weights(path)
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    batches = Batches(name)
    model.fit(
        batches.train().prefetch(tf.data.AUTOTUNE),
        steps_per_epoch=1,
        verbose=0,
        callbacks=[_First(file)],
    )


if __name__ == "__main__":
    if sys.argv[1] == "save":
        save(*sys.argv[2:])
    else:
        fit(*sys.argv[2:])
