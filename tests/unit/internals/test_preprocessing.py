"""Layers that adapt in a graph give what they give eagerly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from runner.internals.preprocessing import adapting_in_graphs

WORDS = np.array([["red blue"], ["blue green!"], ["blue"]])
NUMBERS = np.random.default_rng(1).normal(3, 2, (20, 2)).astype("float32")


def without_marks(text: Any) -> Any:
    return tf.strings.regex_replace(text, "!", "")


def dataset(values: Any, *, batch: int = 2) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(values).batch(batch)


def adapted(layer: Any, data: Callable[[], Any]) -> Callable[[], Any]:
    def build() -> Any:
        built = layer()
        built.adapt(data())
        return built

    return build


def from_file(folder: Path) -> Any:
    (folder / "words.txt").write_text("blue\nred\n")
    return layers.StringLookup(vocabulary=str(folder / "words.txt"), output_mode="one_hot")


CASES: dict[str, tuple[Callable[[], Any], Any]] = {
    "an array": (adapted(layers.Normalization, lambda: NUMBERS), NUMBERS),
    "a data set": (adapted(layers.Normalization, lambda: dataset(NUMBERS)), NUMBERS),
    "a tensor": (adapted(layers.Normalization, lambda: tf.constant(NUMBERS)), NUMBERS),
    "bins": (adapted(lambda: layers.Discretization(num_bins=4), lambda: NUMBERS), NUMBERS),
    "words": (adapted(layers.TextVectorization, lambda: WORDS[:, 0].tolist()), WORDS),
    "words of a data set": (adapted(layers.TextVectorization, lambda: dataset(WORDS)), WORDS),
    "weighted words": (
        adapted(lambda: layers.TextVectorization(output_mode="tf_idf"), lambda: WORDS),
        WORDS,
    ),
    "an own standard": (
        adapted(lambda: layers.TextVectorization(standardize=without_marks), lambda: WORDS),
        WORDS,
    ),
    "numbers": (
        adapted(lambda: layers.IntegerLookup(output_mode="multi_hot"), lambda: [[7], [9], [7]]),
        np.array([[9], [1]]),
    ),
    "a vocabulary": (lambda: layers.StringLookup(vocabulary=["red blue", "blue"]), WORDS),
}


def described(layer: Any) -> Any:
    if not hasattr(layer, "vocabulary_size"):
        return None
    short = layer.get_vocabulary(include_special_tokens=False)
    return layer.vocabulary_size(), layer.get_vocabulary(), short


def in_graph(build: Callable[[], Any], features: Any) -> tuple[Any, Any]:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with adapting_in_graphs():
            layer = build()
            description = described(layer)
        outputs = tf.function(layer)(tf.constant(features))
        session.run(
            [tf.compat.v1.global_variables_initializer(), tf.compat.v1.tables_initializer()]
        )
        return session.run(outputs), description


@pytest.mark.parametrize("case", CASES)
def test_a_layer_learns_the_same_in_a_graph(case: str) -> None:
    build, features = CASES[case]
    layer = build()
    # Keras 3.8 itself puts numbers into other bins within a function.
    expected = keras.ops.convert_to_numpy(tf.function(layer)(tf.constant(features)))
    outputs, description = in_graph(build, features)
    np.testing.assert_allclose(outputs, expected, rtol=1e-6)
    assert description == described(layer)


def test_a_vocabulary_is_read_from_its_file(tmp_path: Path) -> None:
    outputs, (size, *_) = in_graph(lambda: from_file(tmp_path), np.array(["red", "grey"]))
    assert size == 3
    assert outputs.tolist() == [[0, 0, 1], [1, 0, 0]]


def test_nothing_is_changed_afterwards() -> None:
    before = layers.Normalization.adapt
    with adapting_in_graphs():
        assert layers.Normalization.adapt is not before
    assert layers.Normalization.adapt is before
