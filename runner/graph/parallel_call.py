"""Calls a Keras model on several devices, each with its part of the batch.

There is one set of variables, on the first device. A call reads each of them once and gives every
device a copy; the outputs are joined on the first device, where loss and metrics are computed of
the whole batch, as with one device. TensorFlow's gradients then add the devices' gradients of each
variable up. So no value needs a weight of its own, and a checkpoint knows nothing of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from runner.errors import ConfigError
from runner.graph.batch_norm import JointMoments
from runner.graph.replica import part_of
from runner.internals.keras import (
    add_losses,
    layers_of,
    mask_of,
    replaced_calls,
    seeds_of,
    set_mask,
)
from runner.internals.tensorflow import called_functions, function_nodes

# Lies between the seeds of two devices: odd, so that no number of devices repeats one.
_SEED_STEP = 0x9E3779B1
_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


class ParallelCall:
    """The call of a Keras model, with each device taking a part of the batch.

    State that a call changes, such as batch-norm statistics, is the first device's; what metrics of
    layers add up is added up over the devices. Seeds differ between devices, so that dropout and
    augmentation do.

    Args:
      model: the model, with its variables created.
      devices: where each part is computed; variables, loss and metrics are on the first.
      synchronized: whether batch-norm layers use the statistics of the whole batch; otherwise only
        those that were made with `synchronized=True` do.
    """

    def __init__(self, model: Any, devices: Sequence[str], *, synchronized: bool) -> None:
        self._model, self._devices, self._synchronized = model, devices, synchronized

    def __call__(self, features: Any, **options: Any) -> Any:
        """Returns the outputs of the whole batch; `options` are passed on, such as `training`.

        Raises:
          ConfigError: when features or outputs cannot be divided, or a layer changes state that the
            devices cannot share.
        """
        variables = self._variables()
        values = [tf.convert_to_tensor(variable.value) for variable in variables]
        outputs, losses = self._towers(variables, values, features, options)
        add_losses(self._model, losses)
        return outputs

    def for_tapes(self, features: Any, **options: Any) -> Any:
        """Returns the same for a `tf.GradientTape`, which does not place gradients on devices."""
        variables, structures = self._variables(), []
        values = [tf.convert_to_tensor(variable.value) for variable in variables]
        inputs = [*values, *tf.nest.flatten(features)]

        @tf.custom_gradient
        def compute(*arguments: tf.Tensor) -> Any:
            copied, divided = arguments[: len(values)], arguments[len(values) :]
            packed = tf.nest.pack_sequence_as(features, divided)
            structures.append(self._towers(variables, copied, packed, options))
            results = tf.nest.flatten(structures[0])

            def gradient(*upstream: tf.Tensor) -> Any:
                pairs = [
                    (result, above)
                    for result, above in zip(results, upstream, strict=True)
                    if result.dtype.is_floating
                ]
                return tf.compat.v1.gradients(
                    [result for result, _ in pairs],
                    arguments,
                    [above for _, above in pairs],
                    colocate_gradients_with_ops=True,
                )

            return results, gradient

        results = compute(*inputs)
        for result, inner in zip(results, tf.nest.flatten(structures[0]), strict=True):
            set_mask(result, mask_of(inner))
        outputs, losses = tf.nest.pack_sequence_as(structures[0], results)
        add_losses(self._model, losses)
        return outputs

    def _variables(self) -> list[keras.Variable]:
        """Returns what a call may read or change."""
        state = (*self._model.variables, *self._model.metrics_variables)
        return [*{id(variable): variable for variable in state}.values()]

    def _towers(
        self,
        variables: Sequence[keras.Variable],
        values: Sequence[tf.Tensor],
        features: Any,
        options: Mapping[str, Any],
    ) -> tuple[Any, list[tf.Tensor]]:
        """Returns the outputs and the sum of the losses of calls on all devices, from `values`."""
        model, graph = self._model, tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        seeds = {id(seed) for seed in seeds_of(model)}
        shares, parts = _divided(features, len(self._devices))
        moments = JointMoments(self._devices, always=self._synchronized)
        outputs, towers, sums = [], [], list[tf.Tensor]()
        for index, (device, part) in enumerate(zip(self._devices, parts, strict=True)):
            with tf.device(device), tf.name_scope(f"device_{index}"), ExitStack() as stack:
                copies = [
                    _copy(value, index * _SEED_STEP if id(variable) in seeds else 0)
                    for variable, value in zip(variables, values, strict=True)
                ]
                mapping = list(zip(variables, copies, strict=True))
                stack.enter_context(moments.on_device(index, shares[index]))
                stack.enter_context(_recording_sums(model, sums))
                tower = keras.StatelessScope(mapping, collect_losses=True)
                stack.enter_context(tower)
                outputs.append(model(part, **options))
            towers.append((tower, copies))
        _require_shareable(graph.get_operations()[before:], towers[0][0], variables)
        moments.connect()
        with tf.device(self._devices[0]):
            for number, variable in enumerate(variables):
                changes = [
                    (tower.get_current_value(variable), copies[number]) for tower, copies in towers
                ]
                _update(variable, values[number], changes, shares)
            losses = _total_losses([tower.losses for tower, _ in towers], sums, shares)
            return _joined(outputs, parts[0], shares), losses


def parallel_calls(devices: Sequence[str], *, synchronized: bool) -> AbstractContextManager[None]:
    """Lets every Keras model that is called within divide its batch; for steps of their own.

    Calls with other arguments than tensors and `training` stay on the first device, as do layers.
    """
    within = False

    def calling(original: Callable[..., Any], layer: Any, *args: Any, **options: Any) -> Any:
        nonlocal within
        divides = isinstance(layer, keras.Model) and layer.built and len(args) == 1
        if within or not divides or options.keys() - {"training"} or not _are_divisible(args[0]):
            return original(layer, *args, **options)
        within = True
        try:
            call = ParallelCall(layer, devices, synchronized=synchronized)
            return call.for_tapes(args[0], **options)
        finally:
            within = False

    return replaced_calls(calling)


def _are_divisible(features: Any) -> bool:
    tensors = tf.nest.flatten(features)
    return all(isinstance(tensor, tf.Tensor) and tensor.shape.rank != 0 for tensor in tensors)


def _divided(features: Any, count: int) -> tuple[list[Any], list[Any]]:
    """Returns each device's share of the examples, and its features.

    With fewer examples than devices, the last ones repeat an example with the share 0, and their
    outputs are dropped: without any example, gradients of batch norm and convolutions are NaN.

    The CPU divides, so that every device gets its part directly.
    """
    tensors = tf.nest.flatten(features)
    for tensor in tensors:
        if not _are_divisible(tensor):
            kind = "a scalar" if isinstance(tensor, tf.Tensor) else type(tensor).__name__
            raise ConfigError.of(
                f"devices: the features hold {kind}",
                "every device takes its part of a batch, the first dimension of a tensor",
                "give dense tensors with a batch dimension, or set devices=1",
            )
    with tf.device("/cpu:0"):
        divided = [part_of(features, index, count) for index in range(count)]
    return [share for _, share in divided], [part for part, _ in divided]


def _copy(value: tf.Tensor, offset: int) -> tf.Tensor:
    """Returns a copy of a value on the current device; `offset` is added to a seed."""
    return value + tf.constant([offset, 0], value.dtype) if offset else tf.identity(value)


@contextmanager
def _recording_sums(model: Any, sums: list[Any]) -> Iterator[None]:
    """Records what activity regularizers return, sums over examples.

    Newer versions of Keras divide them by the number of examples, older ones add them as they are.
    """
    layers = [layer for layer in layers_of(model) if layer.activity_regularizer is not None]
    regularizers = [layer.activity_regularizer for layer in layers]

    def recording(regularizer: Any) -> Any:
        def loss(output: tf.Tensor) -> tf.Tensor:
            sums.append(regularizer(output))
            return sums[-1]

        return loss

    for layer, regularizer in zip(layers, regularizers, strict=True):
        layer.activity_regularizer = recording(regularizer)
    try:
        yield
    finally:
        for layer, regularizer in zip(layers, regularizers, strict=True):
            layer.activity_regularizer = regularizer


def _total_losses(
    losses: Sequence[Sequence[Any]], sums: Sequence[Any], shares: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Returns the sum of the losses that layers added on all devices; empty without any.

    A scalar is treated as a mean over examples, and weighted by the device's share of them, except
    where it is one of `sums`.
    """
    total = []
    for device_losses, share in zip(losses, shares, strict=True):
        for loss in device_losses:
            is_mean = loss.shape.rank == 0 and not any(loss is value for value in sums)
            weight = share if is_mean else tf.sign(share)
            total.append(tf.reduce_sum(loss * tf.cast(weight, loss.dtype)))
    return [tf.add_n([tf.cast(loss, total[0].dtype) for loss in total])] if total else []


def _update(
    variable: keras.Variable,
    value: tf.Tensor,
    changes: Sequence[tuple[tf.Tensor, tf.Tensor]],
    shares: Sequence[tf.Tensor],
) -> None:
    """Assigns the new value of a variable; `changes` are its values after and before the call.

    Raises:
      ConfigError: when it is a weight that trains, as those of `SpectralNormalization`.
    """
    after, before = changes[0]
    if after is before:
        return
    if variable.trainable:
        raise ConfigError.of(
            f"devices: a layer assigns {variable.path}, which trains",
            "on one device its gradient is that of the value assigned, and on several it would "
            "be that of the value before",
            "set devices=1",
        )
    if variable.aggregation == "sum":  # State of a metric.
        added = [
            (after - before) * tf.cast(tf.sign(share), before.dtype)
            for (after, before), share in zip(changes, shares, strict=True)
        ]
        after = value + tf.add_n(added)
    variable.assign(after)


def _joined(outputs: Sequence[Any], part: Any, shares: Sequence[tf.Tensor]) -> Any:
    """Returns the outputs of the whole batch; `part` are the features of the first device."""
    present = [tf.cast(tf.sign(share), tf.int32) for share in shares[1:]]

    def concatenated(pieces: Sequence[tf.Tensor]) -> tf.Tensor:
        rest = [
            piece[: tf.shape(piece)[0] * is_present]
            for piece, is_present in zip(pieces[1:], present, strict=True)
        ]
        return tf.concat([pieces[0], *rest], 0)

    if outputs[0] is None:
        return None
    size = tf.nest.flatten(part)[0].shape[0]

    def join(*pieces: Any) -> tf.Tensor:
        shape = pieces[0].shape if isinstance(pieces[0], tf.Tensor) else tf.TensorShape([])
        if shape.rank == 0 or shape[0] not in (None, size):
            described = f"of type {type(pieces[0]).__name__} and shape {shape}"
            raise ConfigError.of(
                f"devices: the model returns an output {described}",
                "outputs of the devices are joined along the batch, their first dimension",
                "return a value for each example, or set devices=1",
            )
        joined = concatenated(pieces)
        masks = [mask_of(piece) for piece in pieces]
        if masks[0] is not None:
            set_mask(joined, concatenated(masks))
        return joined

    return tf.nest.map_structure(join, *outputs)


def _require_shareable(
    operations: Sequence[tf.Operation], tower: Any, variables: Sequence[keras.Variable]
) -> None:
    """Raises a ConfigError for state that a call changes outside of the model's Keras variables."""
    changed = [operation.name for operation in operations if _assigns(operation)]
    if changed or len(tower.state_mapping) > len(variables):
        untracked = "a keras.Variable that the model does not list, such as Keras's global seed"
        what = f"the tf.Variable of {changed[0]}" if changed else untracked
        raise ConfigError.of(
            f"devices: a layer changes {what}",
            "every device calls the layer, and would change the variable again",
            "create it by add_weight, or give the layer a keras.random.SeedGenerator of its "
            "own; or set devices=1",
        )


def _assigns(operation: tf.Operation) -> bool:
    inner = (
        node
        for function in called_functions(operation.node_def)
        for node in function_nodes(operation.graph, function)
    )
    return operation.type in _ASSIGNMENTS or any(node.op in _ASSIGNMENTS for node in inner)
