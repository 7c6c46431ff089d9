"""Restores tensors of TensorFlow bundles inside the graph, all of them in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from runner.config.schema import CHIEF, PS
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
      shape: its shape.
      offset: where the block begins that the variable takes; None when it takes all.
      variable: the variable, of the same dtype and of the shape of what it takes.
    """

    source: str
    prefix: str
    name: str
    key: str
    shape: tuple[int, ...]
    offset: tuple[int, ...] | None
    variable: tf.Variable

    @property
    def size(self) -> int:
        """The bytes of the variable; 0 for text."""
        shape = tuple(self.variable.shape.as_list())
        return dtypes.size_in_bytes(shape, self.variable.dtype.base_dtype.name)


class Read:
    """One tensor to read, and the variables that take it or parts of it."""

    def __init__(self, takers: Sequence[BundleTensor]) -> None:
        self.takers = tuple(takers)
        self.size = sum(each.size for each in takers)

    @property
    def spec(self) -> str:
        """What `RestoreV2` reads: a block for one variable, else the whole for all, once."""
        (first, *others) = self.takers
        if others or first.offset is None:
            return ""
        return slice_spec(first.shape, first.offset, first.variable.shape.as_list())

    def assign(self, value: tf.Tensor) -> list[tf.Operation]:
        """Adds the operations that assign what was read."""
        whole = not self.spec
        return [
            _assign(
                each.variable,
                value
                if each.offset is None or not whole
                else tf.slice(value, each.offset, each.variable.shape),
            )
            for each in self.takers
        ]


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
            for chunk in chunks(reads(chain)):
                end = [_restore_chunk(chunk, device, end, look)]
            ends += end
        return tf.group(*ends, name="restore")


def reads(tensors: Sequence[BundleTensor]) -> list[Read]:
    """Returns what to read, every tensor once, in the order of the file, which is by key."""
    takers: dict[str, list[BundleTensor]] = {}
    for each in tensors:
        takers.setdefault(each.key, []).append(each)
    return [Read(takers[key]) for key in sorted(takers)]


def chunks(tensors: Sequence[Read]) -> Iterator[list[Read]]:
    """Yields the reads in runs of at most `CHUNK_BYTES`, a larger tensor by itself."""
    chunk: list[Read] = []
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
    chunk: Sequence[Read],
    device: str,
    after: Sequence[tf.Operation],
    look: Callable[[str, str, NDArray[Any]], None],
) -> tf.Operation:
    place = tf.DeviceSpec.from_string(device)
    if place.job == PS:
        # A parameter server may not have the files, and has no Python function of this process.
        place = place.replace(job=CHIEF, task=0)
    host = place.replace(device_type="CPU", device_index=0)
    with tf.control_dependencies(after), tf.device(host.to_string()):
        values = tf.raw_ops.RestoreV2(
            prefix=chunk[0].takers[0].prefix,
            tensor_names=[each.takers[0].key for each in chunk],
            shape_and_slices=[each.spec for each in chunk],
            dtypes=[each.takers[0].variable.dtype.base_dtype for each in chunk],
        )
    done = []
    looked = []
    for each, value in zip(chunk, values, strict=True):
        if value.dtype.is_floating or value.dtype.is_complex:
            looked.append((each.takers[0], value))
        done += each.assign(value)
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
