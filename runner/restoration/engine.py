"""Restores the values of a plan: read in bounded batches, checked, and assigned by a backend.

Sessions (`restorer`) and eager programs (`eager`) have a backend each.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from runner.checkpoints.reader import CheckpointReader
from runner.restoration.plan import Assignment, RestorationPlan
from runner.restoration.reading import NonFinite, converted_values, require_hashes, value_hash


class Backend(abc.ABC):
    """Reads and assigns the variables of a plan, each by its name in the plan."""

    def restore_in_graph(self, readers: Mapping[str, CheckpointReader]) -> Sequence[Assignment]:
        """Restores the assignments whose tensors it reads itself, and returns them.

        Raises:
          CheckpointError: when a tensor cannot be read.
        """
        return ()

    def batches(self, assignments: Sequence[Assignment]) -> Iterable[Sequence[Assignment]]:
        """Splits assignments into batches, one in memory at a time; by default a single batch."""
        return [assignments]

    @abc.abstractmethod
    def read(self, names: Sequence[str]) -> Mapping[str, Sequence[NDArray[Any]]]:
        """Returns the values of variables, with one value for each replica."""

    @abc.abstractmethod
    def assign(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Gives variables their values."""


def restore_values(
    plan: RestorationPlan,
    readers: Mapping[str, CheckpointReader],
    backend: Backend,
    *,
    non_finite: NonFinite | None = None,
    verify: bool = False,
) -> None:
    """Assigns the value of every variable that the plan restores.

    With a backend of a single batch, nothing is assigned unless everything can be.

    Args:
      plan: the plan.
      readers: scaffold name -> the reader of its checkpoint.
      backend: assigns the values.
      non_finite: counts the NaN and infinite values of all tensors, and refuses or reports them.
      verify: whether to read every restored variable back and compare it with its source.

    Raises:
      PlanError: when the plan has problems; nothing is read then.
      CheckpointError: when a source is damaged, changed since it was planned, or not finite where
        it must be, and when `verify` finds a difference.
    """
    plan.require_sound()
    in_graph = backend.restore_in_graph(readers)
    restored_names = {assignment.variable.name for assignment in in_graph}
    remaining = [
        assignment
        for assignment in plan.assignments
        if assignment.pieces and assignment.variable.name not in restored_names
    ]
    on_tensor = None if non_finite is None else non_finite.on_tensor
    hashes: dict[str, str] = {}
    batches = list(backend.batches(remaining)) or [[]]
    for number, batch in enumerate(batches, 1):
        extended = [assignment.variable.name for assignment in batch if assignment.needs_initial]
        initial = {name: value for name, (value, *_) in backend.read(extended).items()}
        values = {
            assignment.variable.name: value
            for assignment, value in converted_values(batch, readers, initial, on_tensor)
        }
        if verify:
            hashes |= {name: value_hash(value) for name, value in values.items()}
        if non_finite is not None and number == len(batches):
            non_finite.report(plan)  # Everything has been read, and not everything assigned.
        backend.assign(values)
    if verify:
        for assignment, value in converted_values(in_graph, readers, {}):
            hashes[assignment.variable.name] = value_hash(value)
        for batch in backend.batches([*in_graph, *remaining]):
            require_hashes(
                batch, hashes, backend.read([assignment.variable.name for assignment in batch])
            )
