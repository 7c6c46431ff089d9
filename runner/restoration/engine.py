"""Restores the values of a plan: read in bounded batches, checked, and assigned by an assigner.

Sessions (`restorer`) and eager programs (`eager`) have an assigner each.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from numpy.typing import NDArray

from runner.checkpoints.reader import CheckpointReader
from runner.errors import CheckpointError
from runner.planning.plan import Assignment, RestorationPlan
from runner.restoration.reading import (
    NonFiniteTensors,
    OnTensor,
    checksum,
    converted_values,
    hash_problems,
    value_hash,
)

# Values of a first reading that need no second. A warm start of ResNet-50, 98 MB, takes 36 MB
# beside the model; if all values were kept, it would take as much processor time and 117 MB.
KEPT_BYTES = 24 << 20

_Batch: TypeAlias = Sequence[Assignment]
_Values: TypeAlias = dict[str, NDArray[Any]]


class Assigner(abc.ABC):
    """Reads and assigns the variables of a plan, each by its name in the plan.

    Attributes:
      all_or_none: whether no variable may change unless every value can be read.
    """

    all_or_none: ClassVar[bool] = False

    @abc.abstractmethod
    def batches(self, assignments: _Batch) -> Iterable[_Batch]:
        """Splits assignments into batches, one in memory at a time."""

    @abc.abstractmethod
    def read(self, names: Sequence[str]) -> Mapping[str, Sequence[NDArray[Any]]]:
        """Returns the values of variables, with one value for each replica."""

    @abc.abstractmethod
    def assign(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Gives variables their values."""


def restore_values(
    plan: RestorationPlan,
    readers: Mapping[str, CheckpointReader],
    assigner: Assigner,
    *,
    non_finite: NonFiniteTensors | None = None,
    verify: bool = False,
    checksums: dict[str, str] | None = None,
) -> None:
    """Assigns the value of every variable that the plan restores.

    If the assigner assigns all or none, every value is read and checked before the first is
    assigned, and most are read a second time, so that they need not be in memory together.

    Args:
      plan: the plan.
      readers: scaffold name -> the reader of its checkpoint.
      assigner: assigns the values.
      non_finite: finds NaN and infinite values in all tensors, and refuses or reports them.
      verify: whether to read every restored variable back and compare it with its source.
      checksums: filled with the names of variables -> `checksum` of their values.

    Raises:
      PlanError: when the plan has problems; nothing is read then.
      CheckpointError: when a source is damaged, changed since it was planned, or not finite where
        it must be, and when `verify` finds a difference.
    """
    plan.require_sound()
    restored = [assignment for assignment in plan.assignments if assignment.source_tensor]
    on_tensor = None if non_finite is None else non_finite.on_tensor
    first: _Values = {}
    if assigner.all_or_none:
        first = _read_all(restored, readers, assigner, on_tensor)
        if non_finite is not None:
            non_finite.report(plan)
        on_tensor = non_finite = None
    batches = list(assigner.batches([a for a in restored if a.variable.name not in first]))
    hashes: dict[str, str] = {}
    for values in itertools.chain([first], _values(batches, readers, assigner, on_tensor)):
        if verify:
            hashes |= {name: value_hash(value) for name, value in values.items()}
        if checksums is not None:
            checksums |= {name: checksum(value) for name, value in values.items()}
        if values:
            assigner.assign(values)
            values.clear()  # Before the next batch is read.
    if non_finite is not None:
        non_finite.report(plan)
    if verify:
        _require_equal(restored, hashes, assigner)


def _require_equal(
    restored: Sequence[Assignment], hashes: Mapping[str, str], assigner: Assigner
) -> None:
    """Reads variables back; raises a CheckpointError with all that differ from their sources."""
    problems = [
        problem
        for batch in assigner.batches(restored)
        for problem in hash_problems(batch, hashes, assigner.read(_names(batch)))
    ]
    if problems:
        raise CheckpointError(*problems)


def _values(
    batches: Sequence[_Batch],
    readers: Mapping[str, CheckpointReader],
    assigner: Assigner,
    on_tensor: OnTensor | None,
) -> Iterator[_Values]:
    """Yields the values of each batch, by the names of variables; opens each source once."""
    initial: _Values = {}
    values = converted_values([*itertools.chain(*batches)], readers, initial, on_tensor)
    for batch in batches:
        initial.clear()
        if extended := _names(assignment for assignment in batch if assignment.needs_initial):
            initial |= {name: value for name, (value, *_) in assigner.read(extended).items()}
        yield {a.variable.name: value for a, value in itertools.islice(values, len(batch))}


def _read_all(
    assignments: _Batch,
    readers: Mapping[str, CheckpointReader],
    assigner: Assigner,
    on_tensor: OnTensor | None,
) -> _Values:
    """Reads every value for its errors, and returns the first ones, up to `KEPT_BYTES`."""
    first: _Values = {}
    size = 0
    for values in _values([*assigner.batches(assignments)], readers, assigner, on_tensor):
        size += sum(value.nbytes for value in values.values())
        if size <= KEPT_BYTES:
            first |= values
    return first


def _names(assignments: Iterable[Assignment]) -> list[str]:
    return [assignment.variable.name for assignment in assignments]
