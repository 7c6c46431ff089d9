"""Batch-norm statistics: of a batch that replicas divide, and of frozen scaffolds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from runner.config.schema import DevicesConfig, ScaffoldConfig
from runner.console import plural
from runner.graph.step_sums import StepSums
from runner.internals.keras import layers_of, replaced_moments
from runner.planning.model_variables import keras_variables


def synchronized_norms(sums: StepSums, *, always: bool) -> AbstractContextManager[None]:
    """Lets batch-norm layers that are called within use the statistics of the whole batch.

    `always` does so for all layers; otherwise those made with `synchronized=True` do.
    """

    def moments(original: Callable[..., Any], layer: Any, inputs: tf.Tensor, mask: Any) -> Any:
        if not (always or layer.synchronized):
            return original(layer, inputs, mask)
        gathered = sums.gathered(_local_moments(layer, inputs, mask, sums.has_examples))
        return _combined(gathered, keras.backend.epsilon() if mask is not None else 0.0)

    return replaced_moments(moments)


def replicated_norms(model: keras.Model, devices: DevicesConfig) -> Iterator[str]:
    """Yields lines on the statistics that the replicas of a step use."""
    norms = [
        layer for layer in layers_of(model) if isinstance(layer, keras.layers.BatchNormalization)
    ]
    joint = [layer for layer in norms if devices.sync_batch_norm or layer.synchronized]
    if joint:
        count = plural(len(joint), "batch-norm layer")
        yield f"replicas: the statistics of the whole batch in {count}"
    if len(joint) < len(norms):
        count = plural(len(norms) - len(joint), "batch-norm layer")
        yield f"replicas: each replica's own statistics in {count}; the first replica's are saved"


def _local_moments(layer: Any, inputs: tf.Tensor, mask: Any, present: tf.Tensor) -> tf.Tensor:
    """Returns counts, means and mean squared deviations [3, channels]; zeros of no examples."""
    axes = [axis for axis in range(inputs.shape.rank) if axis != layer.axis % inputs.shape.rank]
    weights = tf.ones_like(inputs)
    if mask is not None:
        weights = tf.cast(mask, inputs.dtype)[..., tf.newaxis] * weights
        inputs = tf.where(weights > 0, inputs, 0)
    count = tf.reduce_sum(weights, axes) * tf.cast(present, inputs.dtype)
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs, axes), count)
    shape = [1] * inputs.shape.rank
    shape[layer.axis] = -1
    squares = weights * tf.square(inputs - tf.reshape(mean, shape))
    moments = [count, mean, tf.math.divide_no_nan(tf.reduce_sum(squares, axes), count)]
    return tf.ensure_shape(tf.stack(moments), [3, inputs.shape[layer.axis]])


def _combined(moments: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance [channels] of the moments [replicas, 3, channels].

    `epsilon` is added to the number of examples, as Keras does where there is a mask.
    """
    counts, means, deviations = tf.unstack(moments, axis=1)
    count = tf.reduce_sum(counts, 0) + epsilon
    mean = tf.reduce_sum(counts * means, 0) / count
    return mean, tf.reduce_sum(counts * (deviations + tf.square(means - mean)), 0) / count


def frozen_norms(model: keras.Model, policies: Mapping[str, ScaffoldConfig]) -> dict[Any, bool]:
    """Returns the batch-norm layers of frozen scaffolds, and whether their statistics stay.

    `policies` maps the model's variables to the scaffolds that own them.
    """
    weights = keras_variables(model)
    owners = {id(weight): policies[name] for name, weight in weights.items() if name in policies}
    norms = {}
    for layer in layers_of(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            scaffolds = [owners.get(id(weight)) for weight in layer.weights]
            if scaffolds and all(scaffold and not scaffold.trainable for scaffold in scaffolds):
                norms[layer] = not any(s.update_statistics for s in scaffolds if s)
    return norms


def statistics_notes(norms: Mapping[Any, bool]) -> Iterator[str]:
    """Yields lines on what happens to the statistics of `frozen_norms`."""
    for stays, what in ((True, "stay as they are"), (False, "follow the training data")):
        if count := [*norms.values()].count(stays):
            layers = f"{count} batch-norm layer{'s' * (count > 1)}"
            yield f"frozen: the statistics of {layers} {what}"
