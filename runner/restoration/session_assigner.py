"""Assigns values in a session, without adding an operation to its graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.internals.tensorflow import run_once
from runner.planning.plan import Assignment
from runner.restoration.engine import Assigner

# Bytes in memory besides the variables while values are streamed. Every batch is one run of the
# session, which takes a fraction of a second to prepare, in proportion to the whole graph: 0.45 s
# of processor time for ResNet-50 with Adam, which is restored in one batch, and took two of 64 MB.
BATCH_BYTES = 128 << 20

Variables: TypeAlias = Mapping[str, tf.Variable]
Feeds: TypeAlias = Mapping[Any, Any]


@dataclass(frozen=True)
class AssignOp:
    """How a session assigns a variable: by running `operation` with its value fed to `tensor`."""

    tensor: tf.Tensor
    operation: tf.Operation


def assign_op(variable: tf.Variable) -> AssignOp:
    """Adds the operation that assigns a variable what is fed to the default graph."""
    value = tf.compat.v1.placeholder(variable.dtype.base_dtype, variable.shape)
    return AssignOp(value, variable.assign(value, read_value=False))


class SessionAssigner(Assigner):
    """Assigns in a session, without adding an operation to its graph.

    Args:
      session: the session.
      targets: variable name -> how its value is assigned.
      variables: variable name -> variable, to read.
    """

    def __init__(
        self,
        session: tf.compat.v1.Session,
        targets: Mapping[str, AssignOp],
        *,
        variables: Variables,
    ) -> None:
        self._session, self._targets, self._variables = session, targets, variables

    def batches(self, assignments: Sequence[Assignment]) -> Iterator[list[Assignment]]:
        """Yields the assignments in batches of at most `BATCH_BYTES`, a larger variable alone.

        Variables that one operation assigns are always in one batch.
        """
        batch: list[Assignment] = []
        size, operation = 0, None
        for assignment in assignments:
            target = self._targets[assignment.variable.name]
            needed = assignment.variable.tensor.bytes
            if batch and size + needed > BATCH_BYTES and target.operation is not operation:
                yield batch
                batch, size = [], 0
            batch.append(assignment)
            size, operation = size + needed, target.operation
        if batch:
            yield batch

    def read(self, names: Sequence[str]) -> dict[str, list[NDArray[Any]]]:
        """See `Assigner.read`."""
        values = self._session.run([self._variables[name] for name in names])
        # Strings are objects, for NumPy's bytes end before trailing zeros.
        return {
            name: [np.array(value, object) if isinstance(value, bytes) else np.asarray(value)]
            for name, value in zip(names, values, strict=True)
        }

    def assign(self, values: Mapping[str, NDArray[Any]]) -> None:
        """See `Assigner.assign`."""
        targets = {name: self._targets[name] for name in values}
        run_once(
            self._session,
            [target.operation for target in targets.values()],
            {target.tensor: values[name] for name, target in targets.items()},
        )
