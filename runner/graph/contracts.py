"""The contracts of what a configuration's `_target_`s build: data, models, losses and metrics.

Losses and metrics may also be Keras's.
"""

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


class Model(Protocol):
    """The model of an experiment, normally a `keras.Model`.

    The runner calls it through `tf.function` inside the graph, so that batch-norm statistics and
    random state are updated; a plain call in a graph drops those updates.

    `add_loss` and regularisers of a Keras model always count. Where the configuration names no loss
    or no metrics, the model's own are used: from `compile`, from an overridden `compute_loss` or
    `compute_metrics`, and metrics that it tracks. An overridden `train_step` or `test_step` is
    called in place of all of these, see `runner.graph.keras_steps`. Pretrained values come through
    scaffolds, not from the model's constructor.
    """

    def __call__(self, features: Any, training: bool) -> Any:
        """Returns the outputs for a batch of features."""


class PerExample(Protocol):
    """A loss or a metric, for example a function of `keras.losses`, with `_partial_: true`.

    Classes of `keras.losses` and `keras.metrics` are used as `keras.Model.fit` and `evaluate` use
    them: every pass resets a metric's state, and a training step reports the metric of its own
    batch. `metrics` leave sample weights out, `weighted_metrics` use them.
    """

    def __call__(self, labels: Any, outputs: Any) -> tf.Tensor:
        """Returns values whose first dimension is the batch; the runner averages over all."""
