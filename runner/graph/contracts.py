"""The contract of the data that a configuration's `_target_` builds, and what models override."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import keras
import tensorflow as tf


def overrides(model: keras.Model, method: str) -> bool:
    """Returns whether a model overrides a method of `keras.Model`."""
    return getattr(type(model), method) is not getattr(keras.Model, method)


def features_of(batch: Any) -> Any:
    """Returns the features of a batch, which may have no labels."""
    return batch[0] if isinstance(batch, tuple) else batch


@runtime_checkable
class Data(Protocol):
    """The data of an experiment: three pipelines of batches.

    A batch is `(features, labels)` or, as for `keras.Model.fit`, `(features, labels, weights)` with
    the weights of the examples. Features and labels are tensors, or nested structures of tensors,
    whose first dimension is the batch.

    The training batches are prefetched, unless the data has an attribute `prefetch` that is False.
    `tf.data` tunes the parallelism of training. It does so for the other splits, which start again
    with every evaluation, only where their `options.autotune.enabled` is set.
    """

    def train(self) -> tf.data.Dataset:
        """Returns endless batches, in an order that the seed decides."""

    def validation(self) -> tf.data.Dataset:
        """Returns one pass over the validation split."""

    def test(self) -> tf.data.Dataset:
        """Returns one pass over the test split."""


@runtime_checkable
class Sized(Protocol):
    """Data that reports its split sizes, which are recorded with the run.

    The size of `train` is also the length of one pass over endless training data, for
    `evaluate.split=train`.
    """

    def sizes(self) -> Mapping[str, int]:
        """Returns split -> number of examples."""
