"""The seam at which a graph is spread over several tasks; by default one process holds it all."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from runner.console import plural
from runner.graph.optimization import Gradients
from runner.restoration.plan import RestorationPlan
from runner.restoration.variables import VariableSpec


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
    """One copy of the training graph: where its parts are, and which batches it reads.

    This class is the only copy and places nothing; `runner.cluster.replica` has the other kind.

    Attributes:
      count: the number of copies, which share the batches.
      parts: the number of tasks that divide each batch.
    """

    count = 1
    parts = 1

    def scope(self) -> AbstractContextManager[object]:
        """Places what is added to the default graph within."""
        return nullcontext()

    def shard(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the batches that this copy reads."""
        return dataset

    def share(self, batch: Any) -> tuple[Any, tf.Tensor | None]:
        """Returns the part of a batch that this copy computes, and its weight in the whole batch.

        The weight is a float64 scalar, by which the loss and all metrics of the part are
        multiplied; None for the whole batch.
        """
        return batch, None

    def combined(
        self, means: dict[str, tf.Tensor], gradients: Gradients
    ) -> tuple[dict[str, tf.Tensor], Gradients]:
        """Returns metrics and gradients of whole batches for those of this copy's parts."""
        return means, gradients

    def notes(self) -> list[str]:
        """Returns lines on how the copies share a step, once the training step is built."""
        return []

    def placement(self, variables: Mapping[str, tf.Variable]) -> VariablePlacement | None:
        """Returns where the named variables are; None when all are in this process."""
        return None


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
