"""Measures of a batch: the loss and the metrics.

Training records the values of one batch, and an evaluation the values of a whole pass. Functions of
single examples are here; Keras's losses and metrics are in `keras_measures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from runner.errors import ConfigError, ranked
from runner.graph.calls import per_example
from runner.graph.precision import full_precision

Values: TypeAlias = dict[str, tf.Tensor]
# Metric name -> sum and count, for the mean over all batches.
Totals: TypeAlias = dict[str, tuple[tf.Tensor, tf.Tensor]]


@dataclass(frozen=True)
class Batch:
    """A batch with the model's outputs.

    Attributes:
      features, labels: nested structures of tensors.
      weights: of the examples, as Keras takes `sample_weight`; None weighs all alike.
      outputs: the model's outputs.
      training: whether the model was called to train.
    """

    features: Any
    labels: Any
    weights: Any
    outputs: Any
    training: bool

    @property
    def size(self) -> tf.Tensor:
        """The number of examples, an int64 scalar."""
        return tf.shape(tf.nest.flatten(self.features)[0], out_type=tf.int64)[0]

    def only(self, key: str, output: str, order: list[str]) -> Batch:
        """Returns the batch with the labels, weights and values of one output.

        Args:
          key: the key of the configuration that names the output, for the message.
          output: its name.
          order: the names of the model's outputs, by which lists and tuples are ordered.

        Raises:
          ConfigError: when the model has no such output, or the data no labels for it.
        """

        def pick(structure: Any, problem: str) -> Any:
            by_name = structure
            if not isinstance(structure, Mapping):
                leaves = structure if isinstance(structure, list | tuple) else [structure]
                alike = len(leaves) == len(order)
                by_name = dict(zip(order, leaves, strict=True)) if alike else {}
            if output in by_name:
                return by_name[output]
            names = ranked(output, by_name)
            raise ConfigError.of(f"{key}: {problem} {output!r}", choices=names)

        weights, outputs = self.weights, pick(self.outputs, "the model has no output")
        if isinstance(weights, Mapping | list | tuple):
            weights = pick(weights, "the data give no sample weights for the output")
        labels = pick(self.labels, "the data give no labels for the output")
        return replace(self, labels=labels, weights=weights, outputs=outputs)


class Measure:
    """The loss or a metric.

    Attributes:
      key: the key of the configuration that names it, for the messages.
      output: the model's output that is measured; None, the default, measures all together.
      variables: its state between the batches of a pass, which no checkpoint holds.
    """

    key = "loss"
    output: str | None = None

    @property
    def variables(self) -> list[keras.Variable]:
        """The state; none by default."""
        return []

    def begin_batch(self) -> None:
        """Resets the state that the model's call updates, before a batch of training."""

    def batch_result(self, batch: Batch) -> Values:
        """Returns the scalars of one batch, without any effect."""
        raise NotImplementedError

    def add(self, batch: Batch) -> Totals:
        """Adds a batch to a pass, and returns the sums and counts of measures that are means."""
        raise NotImplementedError

    def reset(self) -> None:
        """Starts a pass."""

    def pass_result(self) -> Values:
        """Returns the scalars of the batches since the reset, of measures that are no means."""
        return {}


class PerExample(Measure):
    """A function of labels and outputs that returns values whose first dimension is the batch.

    The mean is over all values. Sample weights multiply the values of a loss, as in Keras; the mean
    of a metric is weighted by them.

    Args:
      name: the name under which it is recorded.
      key: the key of the configuration, for the messages.
      function: takes labels and outputs; outputs of 16 bits are converted to float32.
      model: its penalty is added to the loss; None for a metric.
      weighted: whether sample weights count.
    """

    def __init__(
        self,
        name: str,
        key: str,
        function: Callable[[Any, Any], Any],
        model: Any = None,
        *,
        weighted: bool = False,
    ) -> None:
        self._name, self.key, self._function = name, key, function
        self._model, self._weighted = model, weighted

    def batch_result(self, batch: Batch) -> Values:
        """Returns the mean."""
        values, weights = self._values(batch)
        if self._model is not None:
            return {self._name: tf.reduce_mean(values) + penalty(self._model)}
        if weights is not None:
            return {
                self._name: tf.math.divide_no_nan(tf.reduce_sum(values), tf.reduce_sum(weights))
            }
        return {self._name: tf.reduce_mean(values)}

    def add(self, batch: Batch) -> Totals:
        """Returns sum and count, in float64."""
        values, weights = self._values(batch)
        total = tf.reduce_sum(tf.cast(values, tf.float64))
        count = tf.size(values, out_type=tf.int64)
        if self._model is not None:
            total += tf.cast(penalty(self._model), tf.float64) * tf.cast(count, tf.float64)
        elif weights is not None:
            count = tf.reduce_sum(tf.cast(weights, tf.float64))
        return {self._name: (total, count)}

    def _values(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the values, weighted, and the weights in their shape."""
        values = per_example(self.key, self._function, batch.labels, full_precision(batch.outputs))
        if values.shape.rank == 0:
            raise ConfigError.of(
                f"{self.key}: its function returns a scalar",
                "the runner averages values per example, so that every example counts the same",
                "return a value for each example, or use a class of keras.losses or keras.metrics",
            )
        if batch.weights is None or not self._weighted:
            return values, None
        weights = tf.cast(batch.weights, values.dtype)
        if weights.shape.rank == values.shape.rank + 1:
            weights = tf.squeeze(weights, -1)
        while weights.shape.rank < values.shape.rank:
            weights = weights[..., tf.newaxis]
        weights = tf.broadcast_to(weights, tf.shape(values))
        return values * weights, weights


def penalty(model: Any) -> tf.Tensor:
    """Returns the sum of the losses that `add_loss` and regularisers added in the last call.

    Keras collects them for each call, and only inside the function that makes the call.
    """
    return tf.add_n([tf.constant(0.0), *map(tf.reduce_sum, getattr(model, "losses", []))])
