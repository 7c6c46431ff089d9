"""Batch-norm statistics: of a batch that several devices share, and of frozen scaffolds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
import tensorflow as tf

from runner.config.schema import ScaffoldConfig
from runner.errors import ConfigError
from runner.graph.experiment import Model
from runner.internals.keras import layers_of, replaced_moments
from runner.internals.tensorflow import set_input
from runner.restoration.model_variables import keras_variables


class JointMoments:
    """The means and variances that batch-norm layers compute over all devices.

    The layers of one device are called before those of the next. Each call takes a stand-in for
    what it needs of all devices, and `connect` gives the stand-ins their inputs. So the exchange
    is made of plain operations, which TensorFlow differentiates. Its collectives would exchange
    the same values, but their kernels do not run in functions that a session calls.

    Args:
      devices: the devices, in the order of their calls.
      always: whether all layers use it; otherwise those made with `synchronized=True`.
    """

    def __init__(self, devices: Sequence[str], *, always: bool) -> None:
        self._devices, self._always = devices, always
        # For each device and call the counts, means and squared deviations [3, channels], and the
        # operation that stands for those of all devices.
        self._calls: list[list[tuple[tf.Tensor, tf.Operation]]] = [[] for _ in devices]
        self._graph = tf.compat.v1.get_default_graph()

    def on_device(self, index: int, share: tf.Tensor) -> AbstractContextManager[None]:
        """Lets the layers that are called within use the statistics of all devices.

        `share` is the device's share of the examples; those of a device with none do not count.
        """

        def moments(original: Callable[..., Any], layer: Any, inputs: tf.Tensor, mask: Any) -> Any:
            if not (self._always or layer.synchronized):
                return original(layer, inputs, mask)
            if tf.compat.v1.get_default_graph() is not self._graph:
                raise ConfigError.of(
                    f"devices.sync_batch_norm: {layer.name} is called within a loop",
                    "the devices exchange statistics once for every layer of a call",
                    "set devices.sync_batch_norm=false",
                )
            local = _local_moments(layer, inputs, mask, share)
            stand_in = tf.identity(tf.stack([local] * len(self._devices)))
            self._calls[index].append((local, stand_in.op))
            return _combined(stand_in, keras.backend.epsilon() if mask is not None else 0.0)

        return replaced_moments(moments)

    def connect(self) -> None:
        """Connects every stand-in with the statistics of all devices."""
        for calls in zip(*self._calls, strict=True):
            with tf.device(self._devices[0]):
                all_moments = tf.stack([local for local, _ in calls])
            for _, stand_in in calls:
                set_input(stand_in, 0, all_moments)


def _local_moments(layer: Any, inputs: tf.Tensor, mask: Any, share: tf.Tensor) -> tf.Tensor:
    """Returns counts, means and mean squared deviations [3, channels]; zeros of no examples."""
    axes = [axis for axis in range(inputs.shape.rank) if axis != layer.axis % inputs.shape.rank]
    weights = tf.ones_like(inputs)
    if mask is not None:
        weights = tf.cast(mask, inputs.dtype)[..., tf.newaxis] * weights
        inputs = tf.where(weights > 0, inputs, 0)
    count = tf.reduce_sum(weights, axes) * tf.cast(tf.sign(share), inputs.dtype)
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs, axes), count)
    shape = [1] * inputs.shape.rank
    shape[layer.axis] = -1
    squares = weights * tf.square(inputs - tf.reshape(mean, shape))
    return tf.stack([count, mean, tf.math.divide_no_nan(tf.reduce_sum(squares, axes), count)])


def _combined(moments: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance [channels] of the moments [devices, 3, channels].

    `epsilon` is added to the number of examples, as Keras does where there is a mask.
    """
    counts, means, deviations = tf.unstack(moments, axis=1)
    count = tf.reduce_sum(counts, 0) + epsilon
    mean = tf.reduce_sum(counts * means, 0) / count
    return mean, tf.reduce_sum(counts * (deviations + tf.square(means - mean)), 0) / count


def frozen_norms(model: Model, policies: Mapping[str, ScaffoldConfig]) -> dict[Any, bool]:
    """Returns the batch-norm layers of frozen scaffolds, and whether their statistics stay.

    `policies` maps the model's variables to the scaffolds that own them.
    """
    weights = keras_variables(model)
    owners = {id(weight): policies[name] for name, weight in weights.items() if name in policies}
    norms = {}
    for layer in layers_of(model) if isinstance(model, keras.Layer) else ():
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


@contextmanager
def as_frozen(norms: Sequence[Any]) -> Iterator[None]:
    """Calls layers as Keras calls those with `trainable = False`, which keep their statistics."""
    for norm in norms:
        norm.trainable = False
    try:
        yield
    finally:
        for norm in norms:
            norm.trainable = True
