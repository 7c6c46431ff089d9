"""Restores values in a session, without adding an operation to its graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.checkpoints.reader import CheckpointReader
from runner.errors import CheckpointError
from runner.internals.tensorflow import run_once
from runner.restoration.engine import Assigner
from runner.restoration.plan import Assignment
from runner.restoration.reading import converted_values

# Bytes in memory besides the variables while values are streamed. Every batch is one run of the
# session, which takes a fraction of a second to prepare, in proportion to the whole graph: 0.45 s
# of processor time for ResNet-50 with Adam, which is restored in one batch, and took two of 64 MB.
BATCH_BYTES = 128 << 20

Variables: TypeAlias = Mapping[str, tf.Variable]
Feeds: TypeAlias = Mapping[Any, Any]


@dataclass(frozen=True)
class InGraph:
    """Assignments that one operation of the graph reads and assigns.

    Attributes:
      operation: reads and assigns.
      assignments: what it restores.
      feeds: what it is fed.
    """

    operation: tf.Operation
    assignments: Sequence[Assignment]
    feeds: Feeds = field(default_factory=dict)


@dataclass(frozen=True)
class AssignOp:
    """How a session assigns a variable: by running `operation` with its value fed to `tensor`."""

    tensor: tf.Tensor
    operation: tf.Operation


class SessionAssigner(Assigner):
    """Restores in a session, without adding an operation to its graph.

    Args:
      session: the session.
      targets: variable name -> how its value is assigned.
      variables: variable name -> variable, to read.
      in_graph: operations that read and assign, to run one after the other.
    """

    def __init__(
        self,
        session: tf.compat.v1.Session,
        targets: Mapping[str, AssignOp],
        *,
        variables: Variables,
        in_graph: Sequence[InGraph] = (),
    ) -> None:
        self._session, self._targets = session, targets
        self._variables, self._in_graph = variables, in_graph

    def restore_in_graph(self, readers: Mapping[str, CheckpointReader]) -> Sequence[Assignment]:
        """See `Assigner.restore_in_graph`."""
        for part in self._in_graph:
            try:
                self._session.run(part.operation, part.feeds)
            except (tf.errors.AbortedError, tf.errors.UnavailableError):
                raise  # A monitored session makes a new session after these.
            except tf.errors.OpError as error:
                for _ in converted_values(part.assignments, readers, {}):
                    pass  # Raises an error that names the tensor, where one is damaged.
                sources = dict.fromkeys(a.pieces[0].source for a in part.assignments)
                paths = ", ".join(readers[source].spec().path for source in sources)
                reason = str(error).partition("\n")[0]
                raise CheckpointError.of(f"{paths} cannot be restored", reason) from error
        return [assignment for part in self._in_graph for assignment in part.assignments]

    def batches(self, assignments: Sequence[Assignment]) -> Iterator[list[Assignment]]:
        """Yields the assignments in batches of at most `BATCH_BYTES`, a larger variable alone.

        Variables with one target tensor, because they share an initial value, are never in one
        batch; variables that one operation assigns always are.
        """
        batch: list[Assignment] = []
        size, fed, operation = 0, set[str](), None
        for assignment in assignments:
            target = self._targets[assignment.variable.name]
            needed, tensor = assignment.variable.tensor.bytes, target.tensor.name
            too_large = size + needed > BATCH_BYTES and target.operation is not operation
            if batch and (too_large or tensor in fed):
                yield batch
                batch, size, fed = [], 0, set()
            batch.append(assignment)
            fed.add(tensor)
            size, operation = size + needed, target.operation
        if batch:
            yield batch

    def read(self, names: Sequence[str]) -> dict[str, list[NDArray[Any]]]:
        """See `Assigner.read`."""
        values = self._session.run([self._variables[name] for name in names])
        return {name: [np.asarray(value)] for name, value in zip(names, values, strict=True)}

    def assign(self, values: Mapping[str, NDArray[Any]]) -> None:
        """See `Assigner.assign`."""
        targets = {name: self._targets[name] for name in values}
        run_once(
            self._session,
            [target.operation for target in targets.values()],
            {target.tensor: values[name] for name, target in targets.items()},
        )
