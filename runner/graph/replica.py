"""How training is spread: over tasks, and over replicas of the step that divide its batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from runner.console import plural
from runner.graph.devices import Devices
from runner.planning.plan import RestorationPlan
from runner.planning.variables import VariableSpec

# Far apart, because the seeds of layers are small numbers.
_SEED_STRIDE = 0x9E3779B9


@dataclass(frozen=True)
class VariablePlacement:
    """The devices of a cluster that hold the variables of a graph.

    Attributes:
      strategy: how they were spread.
      devices: variable name -> device, such as `/job:ps/task:0`.
    """

    strategy: str
    devices: Mapping[str, str]

    @property
    def title(self) -> str:
        """The heading of a report on it."""
        return f"placement on the cluster ({self.strategy})"

    def by_device(self, plan: RestorationPlan) -> dict[str, list[VariableSpec]]:
        """Returns the variables of the plan that each device holds, by the device's name."""
        specs: dict[str, list[VariableSpec]] = {name: [] for name in sorted(self.devices.values())}
        for assignment in plan.assignments:
            specs[self.devices[assignment.variable.name]].append(assignment.variable)
        return specs

    def lines(self, plan: RestorationPlan, *, full: bool) -> list[str]:
        """Returns a heading and, for each device, its size and, if `full`, its variables."""
        lines = [f"{self.title}:"]
        for device, variables in self.by_device(plan).items():
            size = sum(variable.tensor.bytes for variable in variables)
            lines.append(f"  {device}: {plural(len(variables), 'variable')}, {size:,} bytes")
            if full:
                lines += [f"    {spec.name}  {spec.tensor.bytes:,} bytes" for spec in variables]
        return lines


class Replica:
    """The training graph of one task: where its parts are, and which batches it reads.

    This class is the only task and places nothing; `runner.cluster` has the others.

    Attributes:
      count: the number of tasks that train asynchronously, and share the batches.
      tasks: the number of tasks that take each step together, and divide its batch.
      task: which of those this is.
    """

    count = 1
    tasks = 1
    task = 0

    def scope(self) -> AbstractContextManager[object]:
        """Places what is added to the default graph within."""
        return nullcontext()

    def local_scope(self) -> AbstractContextManager[object]:
        """Places variables of this task alone within."""
        return nullcontext()

    def shard(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the batches that this task reads."""
        return dataset

    def placement(self, variables: Mapping[str, tf.Variable]) -> VariablePlacement | None:
        """Returns where the named variables are; None when all are in this process."""
        return None


@dataclass(frozen=True)
class Replicas:
    """The replicas of a training step, one for each device of each task, which divide its batches.

    Args:
      devices: the devices of this task; the others have as many.
      replica: this task.
    """

    devices: Devices
    replica: Replica

    @property
    def here(self) -> range:
        """The indices of the replicas of this task."""
        count = len(self.devices.names) or 1
        return range(self.replica.task * count, (self.replica.task + 1) * count)

    @property
    def count(self) -> int:
        """The number of replicas in all tasks."""
        return self.replica.tasks * len(self.here)

    @property
    def batches(self) -> int:
        """How many batches of the data a step takes, where it accumulates none."""
        return self.count if self.devices.takes_batches else 1

    def scope(self, index: int) -> AbstractContextManager[object]:
        """Places new operations on the device of a replica."""
        number = index - self.here.start
        return tf.device(self.devices.names[number]) if number else self.devices.scope()

    def first_scope(self) -> AbstractContextManager[object]:
        """Places new operations on the first device of this task."""
        return self.scope(self.here.start)

    def notes(self, spec: Any, reduced: int) -> list[str]:
        """Returns lines on how a step is divided, for batches of `spec`.

        `reduced` is how many bytes of gradients each replica gives to the sums of a step.
        """
        size = getattr(tf.nest.flatten(spec)[0], "shape", tf.TensorShape(None))[:1]
        batch = f"{size[0]} examples" if size.rank and size[0] else "every batch"
        divided = "take a batch each" if self.devices.takes_batches else f"divide {batch}"
        places = ", ".join(self.devices.names) or "a device"
        if self.replica.tasks > 1:
            places += f" of each of {self.replica.tasks} tasks"
        return [
            f"replicas: {places} {divided}",
            f"replicas: each of {self.count} has all variables, and gives {reduced:,} bytes of "
            "gradients to the sums of a step",
        ]

    def spec(self, spec: Any) -> Any:
        """Returns the nested `tf.TypeSpec`s of a replica's part of batches of `spec`."""
        if self.count == 1 or self.devices.takes_batches:
            return spec
        return tf.nest.map_structure(partial(_part_spec, count=self.count), spec)

    def parts(self, batches: Sequence[Any]) -> Iterator[tuple[Any, tf.Tensor]]:
        """Yields, for each replica of this task, its part of `batches` and its share of them.

        The share is the fraction of the examples, a float64 scalar.
        """
        with tf.device("/cpu:0"):
            if not self.devices.takes_batches:
                (batch,) = batches
                yield from (part_of(batch, index, self.count) for index in self.here)
                return
            sizes = [tf.cast(_size(tf.nest.flatten(batch)[0]), tf.float64) for batch in batches]
            for index in self.here:
                yield batches[index], sizes[index] / tf.add_n(sizes)


def part_of(batch: Any, index: int, count: int) -> tuple[Any, tf.Tensor]:
    """Returns one of `count` parts of a batch, and its share of the examples.

    Parts differ by one example at most, and none is larger than the first. Of a batch with fewer
    examples than parts, the last parts repeat the last example and have the weight 0: no part is
    empty.

    Args:
      batch: nested tensors, also sparse and ragged, with the examples as first dimension; scalars
        belong to every part.
      index: which part.
      count: how many there are.
    """
    size = _size(tf.nest.flatten(batch)[0])
    # Rounded up, so that the first part is never empty.
    start, stop = (-(-number * size // count) for number in (index, index + 1))
    least, most = (min, max) if isinstance(size, int) else (tf.minimum, tf.maximum)
    first = least(start, size - 1)
    part = tf.nest.map_structure(partial(_examples, start=first, stop=most(stop, first + 1)), batch)
    return part, tf.cast(stop - start, tf.float64) / tf.cast(size, tf.float64)


def _size(value: Any) -> Any:
    """Returns the number of examples, an int64 scalar; a number where it is the same always."""
    if isinstance(value, tf.RaggedTensor):
        return value.nrows(tf.int64)
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    size = value.shape[0]
    return tf.shape(value, out_type=tf.int64)[0] if size is None else size


def _examples(value: Any, start: Any, stop: Any) -> Any:
    if isinstance(value, tf.SparseTensor):
        rest = value.dense_shape[1:]
        size = tf.concat([[stop - start], rest], 0)
        return tf.sparse.slice(value, tf.concat([[start], tf.zeros_like(rest)], 0), size)
    return value[start:stop] if value.shape.rank != 0 else value


def _part_spec(spec: Any, count: int) -> Any:
    if spec.shape.rank == 0:
        return spec
    if isinstance(spec, tf.TensorSpec):
        size = spec.shape[0] if spec.shape.rank else None
        part = size // count if size and size % count == 0 else None
        shape = [part, *spec.shape[1:]] if spec.shape.rank else spec.shape
        return tf.TensorSpec(shape, spec.dtype)
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return tf.SparseTensorSpec(shape, spec.dtype)


def seed_of(replica: int, state: tf.Tensor) -> tf.Tensor:
    """Returns a Keras seed and its counter [2], with another seed for each replica but 0.

    Calling it again for the same replica gives the first seed back.
    """
    stride = np.array([replica * _SEED_STRIDE % 2**32, 0], np.uint32)
    return tf.bitwise.bitwise_xor(state, tf.cast(stride, state.dtype))


def draw_others(definition: tf.compat.v1.GraphDef, replica: int) -> None:
    """Gives operations that draw random numbers from a seed another one for each replica but 0."""
    functions = (function.node_def for function in definition.library.function)
    for node in itertools.chain(definition.node, *functions) if replica else ():
        if "seed2" in node.attr and (node.attr["seed"].i or node.attr["seed2"].i):
            node.attr["seed2"].i += replica * _SEED_STRIDE
