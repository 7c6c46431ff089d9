"""Restores tensors of TensorFlow bundles inside the graph, all of them in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from runner.restoration import dtypes

# A chunk is in memory besides the variables, one for every source. Larger ones are not faster:
# a chunk reuses the memory that the values overwritten by the chunk before it gave back.
CHUNK_BYTES = 32 << 20


@dataclass(frozen=True)
class BundleTensor:
    """A variable and what `RestoreV2` must read for it.

    Attributes:
      source: the scaffold whose checkpoint the bundle is.
      prefix: the bundle's prefix.
      name: the tensor's name in messages.
      key: its key in the bundle.
      slice_spec: which part of it the variable takes, as `RestoreV2` spells it; empty for all.
      variable: the variable, of the same shape and dtype.
    """

    source: str
    prefix: str
    name: str
    key: str
    slice_spec: str
    variable: tf.Variable

    @property
    def size(self) -> int:
        """The bytes of the variable; 0 for text."""
        shape = tuple(self.variable.shape.as_list())
        return dtypes.size_in_bytes(shape, self.variable.dtype.base_dtype.name)


def slice_spec(shape: Sequence[int], offset: Sequence[int], size: Sequence[int]) -> str:
    """Returns `RestoreV2`'s spelling of the block of `size` at `offset` in a tensor of `shape`."""
    ranges = (f"{at},{count}" for at, count in zip(offset, size, strict=True))
    return f"{' '.join(str(each) for each in shape)} {':'.join(ranges)}"


def restore_operation(
    tensors: Sequence[BundleTensor], look: Callable[[str, str, NDArray[Any]], None]
) -> tf.Operation:
    """Adds the operation that assigns all the variables to the default graph.

    Sources are read at the same time, each in chunks one after the other: no more than a chunk a
    source is in memory at once besides the variables.

    Args:
      tensors: what to restore.
      look: called with (source, tensor name, value) of every floating-point tensor that is read,
        from threads of TensorFlow, before the run returns.
    """
    chains: dict[tuple[str, str], list[BundleTensor]] = {}
    for each in tensors:
        chains.setdefault((each.source, each.variable.device), []).append(each)
    ends = []
    with tf.name_scope("restore_bundles"):
        for (_, device), chain in chains.items():
            end: list[tf.Operation] = []
            # In the order of the file, which is that of the keys.
            for chunk in chunks(sorted(chain, key=lambda each: each.key)):
                end = [_restore_chunk(chunk, device, end, look)]
            ends += end
        return tf.group(*ends, name="restore")


def chunks(tensors: Sequence[BundleTensor]) -> Iterator[list[BundleTensor]]:
    """Yields the tensors in runs of at most `CHUNK_BYTES`, a larger tensor by itself."""
    chunk: list[BundleTensor] = []
    size = 0
    for each in tensors:
        if chunk and size + each.size > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(each)
        size += each.size
    if chunk:
        yield chunk


def _restore_chunk(
    chunk: Sequence[BundleTensor],
    device: str,
    after: Sequence[tf.Operation],
    look: Callable[[str, str, NDArray[Any]], None],
) -> tf.Operation:
    host = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0)
    with tf.control_dependencies(after), tf.device(host.to_string()):
        values = tf.raw_ops.RestoreV2(
            prefix=chunk[0].prefix,
            tensor_names=[each.key for each in chunk],
            shape_and_slices=[each.slice_spec for each in chunk],
            dtypes=[each.variable.dtype.base_dtype for each in chunk],
        )
        looked = [
            (each, value)
            for each, value in zip(chunk, values, strict=True)
            if value.dtype.is_floating or value.dtype.is_complex
        ]
    done = [_assign(each.variable, value) for each, value in zip(chunk, values, strict=True)]
    if looked:
        names = [(each.source, each.name) for each, _ in looked]

        def look_at_all(*arrays: NDArray[Any]) -> None:
            for (source, name), array in zip(names, arrays, strict=True):
                look(source, name, array)

        # One operation a chunk: one a tensor would cost thousands of operations.
        with tf.device(host.to_string()):
            done.append(tf.numpy_function(look_at_all, [value for _, value in looked], []))
    return tf.group(*done)


def _assign(variable: tf.Variable, value: tf.Tensor) -> tf.Operation:
    value.set_shape(variable.shape)
    if hasattr(variable, "handle"):
        # `tf.compat.v1.assign` would add an operation that reads the variable again.
        return tf.raw_ops.AssignVariableOp(
            resource=variable.handle, value=value, validate_shape=True
        )
    return tf.compat.v1.assign(variable, value).op
