"""Brings a plan's tensors to its variables: bundles inside the graph, everything else streamed.

Reading bundles with `RestoreV2` instead of streaming them saves 0.3 s of 2.1 s from session to
restored for ResNet-50 with Adam (750 variables), a quarter of that time for BERT-base with Adam
(593 variables), and a third for 1 GB in three bundles.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.checkpoints.reader import Bundle, CheckpointReader
from runner.config.schema import CHIEF, PS
from runner.errors import CheckpointError, Problem
from runner.restoration.conversions import Slice, is_float
from runner.restoration.fitting import SourceTensor
from runner.restoration.plan import Assignment, mean

# So much of each source is in memory at once besides the variables while `RestoreV2` reads.
CHUNK_BYTES = 32 << 20
# So much is in memory besides the variables while values are streamed. Every batch is one run of
# the session, which takes a fraction of a second to prepare, in proportion to the whole graph.
BATCH_BYTES = 64 << 20

Variables: TypeAlias = Mapping[str, tf.Variable]
# Called with (source, tensor name, value, where the value begins in the tensor or None).
Look: TypeAlias = Callable[[str, str, NDArray[Any], tuple[int, ...] | None], None]


def restored_in_graph(assignment: Assignment) -> bool:
    """Returns whether the value is one tensor or a block of it, without further conversion."""
    if len(assignment.pieces) != 1 or assignment.pieces[0].combination is not None:
        return False
    steps = assignment.pieces[0].conversions
    return not steps or (len(steps) == 1 and isinstance(steps[0], Slice))


def restore_operation(
    assignments: Sequence[Assignment],
    variables: Variables,
    bundles: Mapping[str, Bundle],
    look: Look,
) -> tf.Operation:
    """Adds the operation that assigns variables from bundles to the default graph.

    Sources are read at the same time, each in chunks one after the other.

    Args:
      assignments: assignments for which `restored_in_graph`.
      variables: variable name -> variable.
      bundles: scaffold name -> the bundle that its checkpoint is.
      look: called with every floating-point value that is read, from threads of TensorFlow, before
        the run returns.
    """
    chains: dict[tuple[str, str], list[Assignment]] = {}
    for assignment in assignments:
        device = variables[assignment.variable.name].device
        chains.setdefault((assignment.pieces[0].source, device), []).append(assignment)
    ends = []
    with tf.name_scope("restore_bundles"):
        for (source, device), chain in chains.items():
            keys = bundles[source].keys
            # In the order of the file, which is by key.
            chain.sort(key=lambda each: keys[each.pieces[0].tensor.name])
            end: list[tf.Operation] = []
            for chunk in _bounded(chain, CHUNK_BYTES):
                with tf.control_dependencies(end):
                    end = [_restore_chunk(chunk, variables, bundles[source], device, look)]
            ends += end
        return tf.group(*ends, name="restore")


def _restore_chunk(
    chunk: Sequence[Assignment], variables: Variables, bundle: Bundle, device: str, look: Look
) -> tf.Operation:
    place = tf.DeviceSpec.from_string(device)
    if place.job == PS:
        # A parameter server may not have the files, and has no Python function of this process.
        place = place.replace(job=CHIEF, task=0)
    host = place.replace(device_type="CPU", device_index=0).to_string()
    pieces = [each.pieces[0] for each in chunk]
    with tf.device(host):
        values = tf.raw_ops.RestoreV2(
            prefix=bundle.prefix,
            tensor_names=[bundle.keys[piece.tensor.name] for piece in pieces],
            shape_and_slices=[slice_spec(piece) for piece in pieces],
            dtypes=[variables[each.variable.name].dtype.base_dtype for each in chunk],
        )
    done = []
    for each, value in zip(chunk, values, strict=True):
        variable = variables[each.variable.name]
        value.set_shape(variable.shape)
        done.append(variable.assign(value, read_value=False))
    looked = [
        (piece, value)
        for piece, value in zip(pieces, values, strict=True)
        if value.dtype.is_floating or value.dtype.is_complex
    ]

    def look_at_all(*arrays: NDArray[Any]) -> None:
        for (piece, _), array in zip(looked, arrays, strict=True):
            block = _block(piece)
            look(piece.source, piece.tensor.name, array, block.offset if block else None)

    if looked:
        # One operation a chunk: one a tensor would be thousands of operations.
        with tf.device(host):
            done.append(tf.numpy_function(look_at_all, [value for _, value in looked], []))
    return tf.group(*done)


def slice_spec(piece: SourceTensor) -> str:
    """Returns how `RestoreV2` spells the block of a tensor that is taken; empty for the whole."""
    block = _block(piece)
    if block is None:
        return ""
    ranges = (f"{at},{size}" for at, size in zip(block.offset, block.size, strict=True))
    return f"{' '.join(map(str, piece.tensor.shape))} {':'.join(ranges)}"


def _block(piece: SourceTensor) -> Slice | None:
    return next((step for step in piece.conversions if isinstance(step, Slice)), None)


def _bounded(assignments: Sequence[Assignment], limit: int) -> Iterator[list[Assignment]]:
    """Yields the assignments in runs of variables of at most `limit` bytes, a larger one alone."""
    run: list[Assignment] = []
    size = 0
    for assignment in assignments:
        needed = assignment.variable.tensor.bytes
        if run and size + needed > limit:
            yield run
            run, size = [], 0
        run.append(assignment)
        size += needed
    if run:
        yield run


def batches(assignments: Sequence[Assignment], variables: Variables) -> Iterator[list[Assignment]]:
    """Yields the assignments in runs of at most `BATCH_BYTES`, a larger variable alone.

    Variables made from one and the same initial value are never in one batch, because that value
    is what is fed.
    """
    for run in _bounded(assignments, BATCH_BYTES):
        batch: list[Assignment] = []
        fed: set[str] = set()
        for each in run:
            key = _initial_value(variables[each.variable.name]).name
            if key in fed:
                yield batch
                batch, fed = [], set()
            batch.append(each)
            fed.add(key)
        yield batch


def assign(session: tf.compat.v1.Session, values: Sequence[tuple[tf.Variable, Any]]) -> None:
    """Assigns values to variables by feeding their initializers, so that no operation is added."""
    session.run(
        [variable.initializer for variable, _ in values],
        {_initial_value(variable): value for variable, value in values},
    )


def _initial_value(variable: tf.Variable) -> tf.Tensor:
    return variable.initializer.inputs[1]


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
      look: called with every tensor as it is in its checkpoint.

    Raises:
      CheckpointError: when a tensor is damaged, or its value cannot be converted.
    """
    # One pass over each source, in the order in which its tensors are needed.
    streams = {
        source: _stream(source, reader, names, look)
        for source, reader in readers.items()
        if (names := _names(source, assignments))
    }
    for assignment in assignments:
        values = [
            _convert(
                assignment, piece, streams[piece.source], initial.get(assignment.variable.name)
            )
            for piece in assignment.pieces
        ]
        yield assignment, values[0] if len(values) == 1 else mean(values)


def _names(source: str, assignments: Sequence[Assignment]) -> list[str]:
    pieces = [
        piece for assignment in assignments for piece in assignment.pieces if piece.source == source
    ]
    return [name for piece in pieces for name in piece.names]


def _stream(
    source: str, reader: CheckpointReader, names: Sequence[str], look: Look | None
) -> Iterator[NDArray[Any]]:
    try:
        for name, value in reader.read(names):
            if look is not None:
                look(source, name, value, None)
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
    names, wanted = ", ".join(piece.names), assignment.variable.tensor
    try:
        value = piece.convert(tensors, initial)
    except ValueError as error:
        raise CheckpointError(
            Problem(
                f"scaffolds.{piece.source}: {wanted.name} cannot be made of {names}",
                str(error),
                "exclude the variable, or change the conversion in the scaffold",
            )
        ) from error
    dtype = "string" if value.dtype.kind in "OSU" else value.dtype.name
    if (value.shape, dtype) != (wanted.shape, wanted.dtype):
        raise CheckpointError(
            Problem(
                f"scaffolds.{piece.source}: {names} has changed since it was planned, and gives "
                f"{wanted.name} a {dtype} of shape {list(value.shape)}",
                f"the variable is a {wanted.dtype} of shape {list(wanted.shape)}",
                "wait until the checkpoint is written, and start again",
            )
        )
    # TensorFlow keeps what it is fed without a copy: it must not be a view of a file.
    return np.require(value, requirements=["C", "O", "W"])


def in_scaffold(source: str, error: CheckpointError) -> CheckpointError:
    """Returns the error with the name of the scaffold in every problem."""
    return CheckpointError(
        *(
            replace(problem, state=f"scaffolds.{source}: {problem.state}")
            for problem in error.problems
        )
    )


_LOGGER = logging.getLogger(__name__)


class NonFinite:
    """Counts NaN and infinite values in the tensors of one restoration."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], dict[tuple[int, ...] | None, int]] = {}

    def look(
        self, source: str, tensor: str, value: NDArray[Any], offset: tuple[int, ...] | None = None
    ) -> None:
        """Counts the elements that are not finite.

        Args:
          source: the scaffold in whose checkpoint the tensor is.
          tensor: its name.
          value: its value, of any dtype, or that of a block.
          offset: where the block begins in the tensor; None for the whole.
        """
        if value.dtype.kind == "c" or is_float(value.dtype):
            count = value.size - int(np.count_nonzero(np.isfinite(value)))
            if count:
                self._counts.setdefault((source, tensor), {})[offset] = count

    def report(self, paths: Mapping[str, str], refused: frozenset[str]) -> None:
        """Logs a warning for every tensor found, and forgets them.

        Both arguments are by scaffold; those in `refused` have `finite: true`.

        Raises:
          CheckpointError: with every tensor found in a checkpoint of a `refused` scaffold.
        """
        found, self._counts = self._counts, {}
        problems = []
        for (source, tensor), blocks in found.items():
            count = blocks.get(None, sum(blocks.values()))
            key = f"scaffolds.{source}"
            state = f"{key}: {tensor} in {paths[source]} holds {count} NaN or infinite values"
            if source in refused:
                problems.append(
                    Problem(
                        state,
                        f"{key}.finite is true",
                        "name a checkpoint from before that, exclude the variable, or set "
                        f"{key}.finite=false",
                    )
                )
            else:
                _LOGGER.warning("%s; %s.finite=true refuses them", state, key)
        if problems:
            raise CheckpointError(*problems)
