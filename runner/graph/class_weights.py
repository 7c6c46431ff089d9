"""Weights of examples by their classes, as the argument `class_weight` of `keras.Model.fit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from runner.config import conflicts


def weighted_by_class(
    batches: tf.data.Dataset, weights: Mapping[int, float] | None
) -> tf.data.Dataset:
    """Returns batches with the weights of their examples.

    Raises:
      ConfigError: when the batches have weights already, or labels of several outputs.
    """
    if not weights:
        return batches
    spec = batches.element_spec
    has_weights = isinstance(spec, tuple) and len(spec) == 3
    if has_weights or tf.nest.is_nested(spec[1]):
        what = "sample weights" if has_weights else "labels of several outputs"
        raise conflicts.WEIGHTED_TWICE.error(
            f"class_weight is set, and the training data give {what}"
        )

    def weighted(features: Any, labels: tf.Tensor) -> Any:
        return features, labels, class_weights(labels, weights)

    return batches.map(weighted)


def class_weights(labels: tf.Tensor, weights: Mapping[int, float]) -> tf.Tensor:
    """Returns the weight of each example, float32 [batch].

    Args:
      labels: classes [batch] or [batch, 1], or a number for each class [batch, ..., classes].
      weights: class -> weight; other classes weigh 1.
    """
    if labels.shape.rank > 1:
        is_column = labels.shape[-1] == 1
        labels = tf.squeeze(labels, -1) if is_column else tf.argmax(labels, -1)
    if labels.dtype.is_floating:
        labels = tf.round(labels)
    labels = tf.cast(labels, tf.int32)
    by_class = [weights.get(index, 1.0) for index in range(max(weights) + 1)]
    # The last entry is for all other classes.
    others = (labels < 0) | (labels >= len(by_class))
    return tf.gather(tf.constant([*by_class, 1.0]), tf.where(others, len(by_class), labels))
