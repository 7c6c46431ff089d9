"""Restores variables from values read outside the graph, a bounded batch in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.checkpoints.reader import Block, CheckpointReader
from runner.errors import CheckpointError, Problem
from runner.restoration import dtypes
from runner.restoration.assigning import initial_value
from runner.restoration.conversions import Slice
from runner.restoration.plan import Assignment, SourceTensor, mean

# Every batch is one run of the session. A run costs a fraction of a second to prepare, in
# proportion to the whole graph; a batch is in memory besides the variables.
BATCH_BYTES = 64 << 20

Look = Callable[..., None]


def batches(
    assignments: Sequence[Assignment], variables: Mapping[str, tf.Variable]
) -> Iterator[list[Assignment]]:
    """Yields the assignments in runs of at most `BATCH_BYTES`, a larger variable by itself.

    Two variables made from one and the same initial value are never in one batch, because that
    value is what is fed.
    """
    batch: list[Assignment] = []
    fed: set[str] = set()
    size = 0
    for each in assignments:
        tensor = each.variable.tensor
        needed = dtypes.size_in_bytes(tensor.shape, tensor.dtype)
        key = initial_value(variables[each.variable.name]).name
        if batch and (size + needed > BATCH_BYTES or key in fed):
            yield batch
            batch, fed, size = [], set(), 0
        batch.append(each)
        fed.add(key)
        size += needed
    if batch:
        yield batch


def is_taken(assignment: Assignment) -> bool:
    """Returns whether the value is one tensor or a block of it, without further conversion."""
    if len(assignment.pieces) != 1:
        return False
    (piece,) = assignment.pieces
    if piece.as_is:
        return True
    return (
        piece.combination is None
        and len(piece.conversions) == 1
        and isinstance(piece.conversions[0], Slice)
    )


def taken_values(
    source: str, reader: CheckpointReader, assignments: Sequence[Assignment], look: Look
) -> Iterator[tuple[Assignment, NDArray[Any]]]:
    """Yields each assignment with its variable's value; every tensor is read once for all of them.

    Args:
      source: the scaffold in whose checkpoint all tensors are.
      reader: of this checkpoint.
      assignments: assignments for which `is_taken`.
      look: called with (source, tensor name, value) and where it begins of every block of a tensor.

    Raises:
      CheckpointError: when a tensor is damaged, or does not fit its variable.
    """
    takers: dict[str, list[Assignment]] = {}
    for each in assignments:
        takers.setdefault(each.pieces[0].tensor.name, []).append(each)
    # In the order of the file, in which large ones lie side by side.
    wanted = [(name, [_block(each.pieces[0]) for each in takers[name]]) for name in sorted(takers)]
    try:
        for (name, values), (_, blocks) in zip(reader.read_blocks(wanted), wanted, strict=True):
            for each, value, block in zip(takers[name], values, blocks, strict=True):
                look(source, name, value, block)
                _require_fit(each, each.pieces[0], value)
                yield each, value
    except CheckpointError as error:
        raise in_scaffold(source, error) from error


def _block(piece: SourceTensor) -> Block | None:
    for conversion in piece.conversions:
        if isinstance(conversion, Slice):
            return conversion.offset, conversion.size
    return None


def converted_values(
    assignments: Sequence[Assignment],
    readers: Mapping[str, CheckpointReader],
    initial: Mapping[str, NDArray[Any]],
    look: Look | None = None,
) -> Iterator[tuple[Assignment, NDArray[Any]]]:
    """Yields each assignment with its variable's value, one value in memory at a time.

    Args:
      assignments: assignments that take something from a checkpoint.
      readers: scaffold name -> the reader of its checkpoint.
      initial: variable name -> initial value, of the variables of which a part is kept.
      look: called with (source, tensor name, value) of every tensor as it is in its checkpoint.

    Raises:
      CheckpointError: when a tensor is damaged, or its value cannot be converted.
    """
    # One pass over each source, in the order in which its tensors are needed.
    streams = {
        source: _stream(source, reader, names, look)
        for source, reader in readers.items()
        if (names := _names(source, assignments))
    }
    for each in assignments:
        values = [
            _convert(each, piece, streams[piece.source], initial.get(each.variable.name))
            for piece in each.pieces
        ]
        yield each, values[0] if len(values) == 1 else mean(values)


def _names(source: str, assignments: Sequence[Assignment]) -> list[str]:
    return [
        name
        for each in assignments
        for piece in each.pieces
        if piece.source == source
        for name in piece.names
    ]


def _stream(
    source: str, reader: CheckpointReader, names: Sequence[str], look: Look | None
) -> Iterator[NDArray[Any]]:
    try:
        for name, value in reader.read(names):
            if look is not None:
                look(source, name, value)
            yield value
    except CheckpointError as error:
        raise in_scaffold(source, error) from error


def _convert(
    assignment: Assignment,
    piece: SourceTensor,
    stream: Iterator[NDArray[Any]],
    initial: NDArray[Any] | None,
) -> NDArray[Any]:
    tensors = [next(stream) for _ in piece.names]
    try:
        value = piece.convert(tensors, initial)
    except ValueError as error:
        raise CheckpointError(
            Problem(
                f"scaffolds.{piece.source}: {assignment.variable.name} cannot be made of "
                f"{', '.join(piece.names)}",
                str(error),
                "exclude the variable, or change the conversion in the scaffold",
            )
        ) from error
    _require_fit(assignment, piece, value)
    return value if _owns_memory(value) else np.array(value)


def _require_fit(assignment: Assignment, piece: SourceTensor, value: NDArray[Any]) -> None:
    wanted = assignment.variable.tensor
    dtype = "string" if value.dtype.kind in "OSU" else value.dtype.name
    if (value.shape, dtype) != (wanted.shape, wanted.dtype):
        raise CheckpointError(
            Problem(
                f"scaffolds.{piece.source}: {', '.join(piece.names)} has changed since it was "
                f"planned, and gives {wanted.name} a {dtype} of shape {list(value.shape)}",
                f"the variable is a {wanted.dtype} of shape {list(wanted.shape)}",
                "wait until the checkpoint is written, and start again",
            )
        )


def _owns_memory(value: NDArray[Any]) -> bool:
    """Returns whether the value is no view of a file or of another library's memory.

    TensorFlow keeps what it is fed without copying it, so a variable would hold on to such a view.
    """
    owner: Any = value
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return owner.base is None and bool(owner.flags.writeable)


def in_scaffold(source: str, error: CheckpointError) -> CheckpointError:
    """Returns the error with the name of the scaffold in every problem."""
    return CheckpointError(
        *(
            Problem(f"scaffolds.{source}: {each.state}", each.cause, each.remedy, each.choices)
            for each in error.problems
        )
    )
