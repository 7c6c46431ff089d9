"""One task's copy of a model that all tasks hold, with updates by TensorFlow's collectives.

Every task computes the gradients of its part of each batch. They are summed over the tasks, each
weighted by its part of the examples, and every task makes the same update. Once a session, the
tasks take over the chief's values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf

from runner.config.cluster_spec import replica_index
from runner.config.schema import ClusterConfig
from runner.console import plural
from runner.graph.built_graph import BuiltGraph
from runner.graph.optimization import Gradients
from runner.graph.replica import Replica, part_of
from runner.restoration.variables import StateClass, classify

# Small tensors share a message; larger ones would be copied for nothing.
PACK_BYTES = 16 * 2**20
_GROUP = 1
# The first key of each kind of collective; a graph has far fewer of them than lie in between.
_REDUCE, _VALUES = 1, 1_000_000
# What collectives transport; other types travel in one that holds all of their values.
_SENT = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
# Far apart, because the seeds of layers are small numbers.
_SEED_STRIDE = 0x9E3779B9

# Takes a vector and the key of its collective.
Collective = Callable[[tf.Tensor, int], tf.Tensor]


class Ending(Enum):
    """How the chief ends the session of all tasks, as the value of `ending` in the last step."""

    FINISHED = 1.0
    LEFT = 2.0


class CollectiveReplica(Replica):
    """The copy of the training graph in one task of a cluster in mode `collective`.

    Args:
      cluster: the resolved configuration. Before the tasks are known the graph is the chief's.

    Attributes:
      ending: 0 in a step that all tasks take; otherwise the chief takes none, and it is the value
        of an `Ending`. A float64 scalar, set with the training step.
      end_op: run by the chief instead of a step, with a value for `chief_ending`.
      reduced_bytes: the bytes that each task gives to the sums of a step.
    """

    ending: tf.Tensor
    end_op: tf.Operation
    chief_ending: tf.Tensor
    reduced_bytes = 0

    def __init__(self, cluster: ClusterConfig) -> None:
        self._cluster, self._index = cluster, replica_index(cluster)
        self.parts = cluster.workers

    def share(self, batch: Any) -> tuple[Any, tf.Tensor]:
        """Returns this task's part of a batch; later operations draw other numbers in each task.

        The data, built before, must give all tasks the same batches.
        """
        graph = tf.compat.v1.get_default_graph()
        if self._index and graph.seed is not None:
            graph.seed = (graph.seed + self._index * _SEED_STRIDE) % 2**31
        return part_of(batch, self._index, self._cluster.workers)

    def combined(
        self, means: dict[str, tf.Tensor], gradients: Gradients
    ) -> tuple[dict[str, tf.Tensor], Gradients]:
        """Returns the sums over all tasks. Sparse gradients become dense, as all tasks add them."""
        used = [index for index, (gradient, _) in enumerate(gradients) if gradient is not None]
        measured = tf.stack([tf.cast(value, tf.float64) for value in means.values()])
        values = [tf.concat([measured, [0.0]], 0)] + [
            tf.reshape(tf.convert_to_tensor(gradients[index][0]), gradients[index][1].shape)
            for index in used
        ]
        self.reduced_bytes = sum(map(_size, values))
        with tf.name_scope("collective"):
            # One pack after the other, in which the gradients wait for the metrics.
            first, *sums = in_packs(values, self._sum, _REDUCE)
            with tf.control_dependencies(None):
                self.chief_ending = tf.compat.v1.placeholder(tf.float64, [])
                zeros = [tf.zeros(value.shape, value.dtype) for value in values[1:]]
                none = tf.zeros(measured.shape, tf.float64)
                last = [tf.concat([none, [self.chief_ending]], 0), *zeros]
                self.end_op = tf.group(in_packs(last, self._sum, _REDUCE))
        *reduced, self.ending = tf.unstack(first, len(means) + 1)
        combined_means = {
            name: tf.cast(value, means[name].dtype)
            for name, value in zip(means, reduced, strict=True)
        }
        for index, gradient in zip(used, sums, strict=True):
            gradients[index] = (gradient, gradients[index][1])
        return combined_means, gradients

    def notes(self) -> list[str]:
        """Returns a line on the tasks and what they exchange."""
        workers = self._cluster.workers
        return [
            f"collective: a chief and {plural(workers - 1, 'worker')}, each with all variables and "
            f"1/{workers} of every batch; {self.reduced_bytes:,} bytes reduced in a step"
        ]

    def take_over(self, variables: Mapping[str, tf.Variable]) -> tf.Operation:
        """Returns the operation by which all tasks take over the chief's values.

        Seeds of random numbers are then changed in the other tasks, so that all draw others.
        """
        shared = {name: v for name, v in variables.items() if v.dtype.base_dtype != tf.string}
        values = [_as_sent(variable.read_value()) for variable in shared.values()]
        if not self._index:
            return tf.group(in_packs(values, self._send, _VALUES))
        assigned = []
        received = in_packs(values, self._receive, _VALUES)
        for (name, variable), value in zip(shared.items(), received, strict=True):
            value = tf.cast(value, variable.dtype.base_dtype)
            if classify(name, model=True) is StateClass.RANDOM_STATE:
                value = self._seed_of_task(value)
            assigned.append(variable.assign(value, read_value=False))
        return tf.group(assigned)

    def _seed_of_task(self, state: tf.Tensor) -> tf.Tensor:
        """Returns a Keras seed and its counter, uint32 [2], with another seed in each task."""
        stride = np.array([self._index * _SEED_STRIDE % 2**32, 0], np.uint32)
        return tf.bitwise.bitwise_xor(state, tf.cast(stride, state.dtype))

    def _sum(self, values: tf.Tensor, key: int) -> tf.Tensor:
        return tf.raw_ops.CollectiveReduceV2(
            input=values, **self._of(key), ordering_token=[], merge_op="Add", final_op="Id"
        )

    def _send(self, values: tf.Tensor, key: int) -> tf.Tensor:
        return tf.raw_ops.CollectiveBcastSendV2(input=values, **self._of(key))

    def _receive(self, values: tf.Tensor, key: int) -> tf.Tensor:
        shape = values.shape.as_list()
        return tf.raw_ops.CollectiveBcastRecvV2(T=values.dtype, shape=shape, **self._of(key))

    def _of(self, key: int) -> dict[str, int]:
        return {"group_size": self._cluster.workers, "group_key": _GROUP, "instance_key": key}


def in_packs(values: Sequence[tf.Tensor], collective: Collective, key: int) -> list[tf.Tensor]:
    """Returns the results of a collective for tensors of static shapes, several at a time.

    The packs follow each other, so that no order depends on which is ready first, and no pack is
    left out where a later one is needed.

    Args:
      values: the tensors, of the same shapes and types in all tasks.
      collective: maps a vector to another of the same size and type.
      key: of the first pack; the others count from there.
    """
    results: dict[int, tf.Tensor] = {}
    before: list[tf.Operation] = []
    for number, pack in enumerate(_packs(values)):
        flat = tf.concat([tf.reshape(values[index], [-1]) for index in pack], 0)
        sizes = [values[index].shape.num_elements() for index in pack]
        with tf.control_dependencies(before):
            result = collective(tf.ensure_shape(flat, [sum(sizes)]), key + number)
        before = [result.op]
        parts = tf.split(tf.reshape(result, [sum(sizes)]), sizes)
        for index, part in zip(pack, parts, strict=True):
            results[index] = tf.reshape(part, values[index].shape)
    return [results[index] for index in range(len(values))]


def _packs(values: Sequence[tf.Tensor]) -> Iterator[list[int]]:
    """Yields the indices of tensors of one type, which are small together or one alone."""
    by_type: dict[tf.DType, list[int]] = {}
    for index, value in enumerate(values):
        by_type.setdefault(value.dtype, []).append(index)
    for indices in by_type.values():
        pack: list[int] = []
        size = 0
        for index in indices:
            if pack and size + _size(values[index]) > PACK_BYTES:
                yield pack
                pack, size = [], 0
            pack.append(index)
            size += _size(values[index])
        yield pack


def _size(value: tf.Tensor) -> int:
    return int(value.shape.num_elements()) * int(value.dtype.size)


def _as_sent(value: tf.Tensor) -> tf.Tensor:
    if value.dtype in _SENT:
        return value
    return tf.cast(value, tf.float32 if value.dtype.is_floating else tf.int64)


class InputPosition:
    """The position in the training input, which the other tasks take over from the chief.

    Args:
      built: the graph; where it saves no position, all tasks begin with the first batch.
    """

    def __init__(self, built: BuiltGraph) -> None:
        saved = built.training.saved_input if built.training else None
        self._content = None
        if saved is None:
            return
        (resource,) = saved.serialize.inputs
        self._content = tf.io.serialize_tensor(saved.serialize.outputs[0])
        self._text = tf.compat.v1.placeholder(tf.string, [])
        self._restore = tf.raw_ops.DeserializeIterator(
            resource_handle=resource, serialized=tf.io.parse_tensor(self._text, tf.variant)
        )

    def content(self, session: tf.compat.v1.Session) -> bytes:
        """Returns the position of a session; empty where the graph saves none."""
        return b"" if self._content is None else bytes(session.run(self._content))

    def restore(self, session: tf.compat.v1.Session, content: bytes | None) -> None:
        """Sets a session to a position."""
        if content:
            session.run(self._restore, {self._text: content})
