"""Losses and metrics that Keras computes: its classes, its names, and a model's own."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from runner.errors import ConfigError
from runner.graph.measures import Batch, Measure, Totals, Values, penalty
from runner.internals.keras import hand_over_losses, metrics_of


class Streaming(Measure):
    """A `keras.metrics.Metric`.

    Args:
      name: the name under which it is recorded; a dictionary's entries as `NAME_ENTRY`.
      key: the key of the configuration, for the messages.
      metric: the metric, or its name as `keras.Model.compile` takes it.
      weighted: whether sample weights count.
    """

    def __init__(
        self, name: str, key: str, metric: keras.metrics.Metric | str, *, weighted: bool
    ) -> None:
        self._name, self.key, self._weighted = name, key, weighted
        self._metric = metric

    @property
    def variables(self) -> list[keras.Variable]:
        """The metric's state."""
        return [] if isinstance(self._metric, str) else list(self._metric.variables)

    def batch_result(self, batch: Batch) -> Values:
        """Returns the metric of this batch alone."""
        with keras.StatelessScope():
            self.reset()
            self.add(batch)
            return self.pass_result()

    def add(self, batch: Batch) -> Totals:
        """Updates the state."""
        if isinstance(self._metric, str):
            self._metric = accuracy(batch.labels, batch.outputs)
        weights = {"sample_weight": batch.weights} if self._weighted else {}
        self._metric.update_state(batch.labels, batch.outputs, **weights)
        return {}

    def reset(self) -> None:
        """Resets the state."""
        if not isinstance(self._metric, str):
            self._metric.reset_state()

    def pass_result(self) -> Values:
        """Returns the result."""
        metric: Any = self._metric
        return scalars(self.key, {self._name: metric.result()})


class Losses(Measure):
    """Losses as `keras.Model.compile` takes them, one for all outputs or one for each.

    The losses of several outputs are also recorded by themselves, as `OUTPUT_loss`.

    Args:
      losses: output, or None for all -> a `keras.losses.Loss`, a function or a name.
      weights: output -> factor of its loss in the sum, by default 1.
      model: its penalty is added to the sum; it also has the order of the outputs.
    """

    def __init__(
        self, losses: Mapping[str | None, Any], weights: Mapping[str, float], model: Any
    ) -> None:
        self._weights, self._model = weights, model
        self._losses = {}
        for output, loss in losses.items():
            # Keras's own treatment of names, functions, masks and weights.
            self._losses[output] = keras.Model(name=f"{output}_loss" if output else "loss")
            self._losses[output].compile(optimizer=None, loss=loss)

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables that Keras makes beside each loss."""
        return [state for loss in self._losses.values() for state in loss.metrics_variables]

    def batch_result(self, batch: Batch) -> Values:
        """Returns the loss, and the losses of several outputs."""
        values = {}
        total = penalty(self._model)
        for output, loss in self._losses.items():
            part = batch
            if output is not None:
                part = batch.only(f"loss.{output}", output, outputs_of(self._model))
            # Where one loss is for several outputs, Keras would keep a mean of each.
            with keras.StatelessScope():
                value = loss.compute_loss(
                    y=part.labels, y_pred=part.outputs, sample_weight=part.weights
                )
            if value.shape.rank:
                raise ConfigError.of(
                    "loss: its reduction leaves a value for each example",
                    "a class of keras.losses returns their mean, by default",
                    "delete `reduction` from its arguments",
                )
            if len(self._losses) > 1:
                values[f"{output}_loss"] = value
            total += value * self._weights.get(output or "", 1.0)
        return {"loss": total, **values}

    def add(self, batch: Batch) -> Totals:
        """Returns each loss times the size of the batch, and that size, as Keras averages them."""
        return example_totals(batch, self.batch_result(batch))


class OfModel(Measure):
    """The loss and the metrics of a Keras model, from `compile` or from its own methods.

    Args:
      model: the model.
      loss: whether the loss is the model's.
      metrics: whether the metrics are the model's.
    """

    key = "model"

    def __init__(self, model: keras.Model, *, loss: bool, metrics: bool) -> None:
        self._model, self._loss, self._metrics = model, loss, metrics
        takes = inspect.signature(model.compute_loss).parameters
        self._takes_training = "training" in takes

    @property
    def variables(self) -> list[keras.Variable]:
        """The state of its metrics, and of the metrics within its layers."""
        return list(self._model.metrics_variables)

    def begin_batch(self) -> None:
        """Resets the metrics of the model itself and of its layers, which a call may update."""
        for metric in self._tracked():
            metric.reset_state()

    def _tracked(self) -> list[keras.metrics.Metric]:
        """Returns the model's metrics, except metrics of `compile`."""
        return list(keras.Layer.metrics.fget(self._model))

    def batch_result(self, batch: Batch) -> Values:
        """Returns the loss, and the metrics of this batch alone."""
        tracked = {id(metric) for metric in self._tracked()}
        # Regularisers read the weights from the scope.
        weights = [(weight, weight) for weight in self._model.trainable_variables]
        with keras.StatelessScope(weights) as scope:
            hand_over_losses(self._model, scope)
            for metric in metrics_of(self._model):
                if id(metric) not in tracked:
                    metric.reset_state()
            return {**self._losses(batch), **self._measured(batch)}

    def add(self, batch: Batch) -> Totals:
        """Updates the metrics; returns the loss."""
        totals = example_totals(batch, self._losses(batch))
        self._measured(batch)
        return totals

    def reset(self) -> None:
        """Resets the metrics."""
        self._model.reset_metrics()

    def pass_result(self) -> Values:
        """Returns the metrics."""
        return self._named(self._model.get_metrics_result()) if self._metrics else {}

    def _losses(self, batch: Batch) -> Values:
        if not self._loss:
            return {}
        training = {"training": batch.training} if self._takes_training else {}
        loss = self._model.compute_loss(
            batch.features, batch.labels, batch.outputs, batch.weights, **training
        )
        return {"loss": tf.cast(loss, tf.float32)}

    def _measured(self, batch: Batch) -> Values:
        if not self._metrics:
            return {}
        return self._named(
            self._model.compute_metrics(
                batch.features, batch.labels, batch.outputs, sample_weight=batch.weights
            )
        )

    def _named(self, results: Mapping[str, Any]) -> Values:
        metrics = {name: value for name, value in results.items() if name != "loss"}
        return scalars("model", metrics)


def example_totals(batch: Batch, means: Values) -> Totals:
    """Returns the means of a batch as sums over its examples, with the number of examples."""
    count = tf.cast(batch.size, tf.float64)
    return {name: (tf.cast(mean, tf.float64) * count, batch.size) for name, mean in means.items()}


def outputs_of(model: Any) -> list[str]:
    """Returns the names of a model's outputs in order; empty where they have none."""
    return list(getattr(model, "output_names", None) or [])


def accuracy(labels: tf.Tensor, outputs: tf.Tensor) -> keras.metrics.Metric:
    """Chooses the metric for `accuracy` by the shapes, as `keras.Model.compile` does."""
    if outputs.shape[-1] == 1:
        return keras.metrics.BinaryAccuracy()
    if labels.shape.rank < outputs.shape.rank or labels.shape[-1] == 1:
        return keras.metrics.SparseCategoricalAccuracy()
    return keras.metrics.CategoricalAccuracy()


def scalars(key: str, results: Mapping[str, Any]) -> Values:
    """Returns results by name; the entries of a dictionary are named `NAME_ENTRY`.

    Raises:
      ConfigError: when one is not a scalar.
    """
    named: Values = {}
    for name, result in results.items():
        entries: Iterable[tuple[str, Any]] = (
            ((f"{name}_{entry}", value) for entry, value in result.items())
            if isinstance(result, Mapping)
            else [(name, result)]
        )
        for entry_name, value in entries:
            tensor = tf.cast(value, tf.float32)
            if tensor.shape.rank != 0:
                raise ConfigError.of(
                    f"{key}: {entry_name} has the shape {tensor.shape}",
                    "only a scalar is recorded and compared",
                    "reduce it: keras.metrics.F1Score takes `average: macro`, for example",
                )
            named[entry_name] = tensor
    return named
