"""Restores plans in sessions: bundles by operations of the graph, everything else streamed.

Reading bundles with `RestoreV2` instead of streaming them saves 0.3 s of 2.1 s from session to
restored for ResNet-50 with Adam (750 variables), a quarter of that time for BERT-base with Adam
(593 variables), and a third for 1 GB in three bundles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.checkpoints.reader import Bundle, CheckpointReader
from runner.config.choices import Initialize
from runner.config.schema import CHIEF, PS
from runner.errors import CheckpointError
from runner.internals.tensorflow import run_once
from runner.restoration.conversions import Slice
from runner.restoration.engine import restore_values
from runner.restoration.initialization import necessary
from runner.restoration.plan import Assignment, RestorationPlan
from runner.restoration.reading import NonFinite, checksum
from runner.restoration.session_assigner import AssignOp, Feeds, InGraph, SessionAssigner, Variables
from runner.restoration.source_tensors import SourceTensor

# Bytes of each source in memory at once, besides the variables, while `RestoreV2` reads.
CHUNK_BYTES = 32 << 20
OnValue: TypeAlias = Callable[[Assignment, NDArray[Any]], None]
InitFunction: TypeAlias = Callable[[tf.compat.v1.Session], None]


class Restorer:
    """Restores the variables of a plan, in any session of one graph.

    First the variables are initialised, except for initial values that nothing can observe, or with
    `initialize: remaining` all that are overwritten; then the plan is restored. Whole tensors of
    TensorFlow bundles and blocks of them are read inside the graph, from all sources in one run.
    Other tensors are read one by one, converted and assigned in batches of bounded size. The
    constructor adds the operations to the default graph; restoring adds none, however often.

    Args:
      plan: the plan.
      variables: name in the plan -> variable; all global variables of the graph.
      open_reader: returns the reader of a scaffold's checkpoint.
      initialize: which initializers run: all that can be observed, or those whose variables the
        restoration does not provably overwrite.
      verify: whether `restore` reads every restored variable back and compares it.
      other_inits: further operations that run before the restoration, which may read a variable.
        They do not become part of `init_op`.
      together: operations that become part of it, and read no variable: each run of a session that
        fetches something else takes 0.45 s of processor time in the graph of ResNet-50 with Adam.
      on_restored: called after a restoration with name -> `checksum` of each restored value.

    Attributes:
      init_op: the operation that initialises global variables before `restore`.
      local_inits: operations to run in every new session: none.

    Raises:
      PlanError: when the plan has problems.
      CheckpointError: when a checkpoint cannot be read.
    """

    def __init__(
        self,
        plan: RestorationPlan,
        variables: Variables,
        open_reader: Callable[[str], CheckpointReader],
        *,
        initialize: Initialize = Initialize.all,
        verify: bool = False,
        other_inits: Sequence[tf.Operation] = (),
        together: Sequence[tf.Operation] = (),
        on_restored: Callable[[Mapping[str, str]], None] = lambda checksums: None,
    ) -> None:
        plan.require_sound()
        self.local_inits: Mapping[tf.Operation, Feeds | None] = {}
        self._plan, self._variables, self._open_reader = plan, variables, open_reader
        self._verify, self._on_restored = verify, on_restored
        self._checksums: dict[str, str] = {}
        self._non_finite = NonFinite()
        readers = self._readers()
        self._bundles = {name: bundle for name in readers if (bundle := readers[name].bundle())}
        in_graph = [
            assignment
            for assignment in plan.assignments
            if restored_in_graph(assignment) and assignment.pieces[0].source in self._bundles
        ]
        self._in_graph: list[InGraph] = []
        if in_graph:
            operation = restore_operation(
                in_graph, variables, self._bundles, on_value=self._on_value
            )
            self._in_graph.append(InGraph(operation, in_graph))
        initializers = [variable.initializer for variable in variables.values()]
        overwritten = {
            variables[assignment.variable.name].op.name
            for assignment in plan.assignments
            if assignment.pieces and not assignment.needs_initial
        }
        self.init_op: tf.Operation = tf.group(
            *necessary(
                initializers,
                overwritten,
                other_inits,
                effects=initialize is Initialize.all,
            ),
            *together,
            name="initialize_before_restore",
        )
        # With an `init_fn`, which may read any variable, nothing is left out.
        self._observed_inits = (
            [*initializers, *together] if initialize is Initialize.all else [self.init_op]
        )

    def warm_start(
        self,
        session: tf.compat.v1.Session,
        init_op: tf.Operation | None,
        init_feed_dict: Feeds | None,
        *,
        init_fn: InitFunction | None,
    ) -> None:
        """Runs its initializers, unless `init_op` is their operation, and the others; restores."""
        initial = [self.init_op] if init_fn is None else self._observed_inits
        if init_op is self.init_op:
            run_once(session, initial, init_feed_dict)
        else:
            run_once(session, initial)
            if init_op is not None:
                session.run(init_op, init_feed_dict)
        if init_fn is not None:
            init_fn(session)
        self.restore(session)

    def restore(self, session: tf.compat.v1.Session) -> None:
        """Assigns every variable that the plan restores.

        Raises:
          CheckpointError: when a source is damaged, changed since it was planned, or not finite
            where it must be, and when `verify` finds a difference. The session is then of no use.
        """
        names = [a.variable.name for a in self._plan.assignments if a.pieces]
        initializers = {name: self._variables[name].initializer for name in names}
        # Initializers are fed, so that no operation is added.
        targets = {name: AssignOp(op.inputs[1], op) for name, op in initializers.items()}
        restore_values(
            self._plan,
            self._readers(),
            SessionAssigner(session, targets, variables=self._variables, in_graph=self._in_graph),
            non_finite=self._non_finite,
            verify=self._verify,
            checksums=self._checksums,
        )
        self._on_restored(self._checksums)

    def _on_value(self, assignment: Assignment, value: NDArray[Any]) -> None:
        (piece,) = assignment.pieces
        self._non_finite.on_tensor(piece.source, piece.names[0], value)
        # A block of a tensor has another checksum than the whole.
        stored = {} if piece.conversions else self._bundles[piece.source].checksums
        self._checksums[assignment.variable.name] = stored.get(piece.names[0]) or checksum(value)

    def _readers(self) -> dict[str, CheckpointReader]:
        readers = {}
        for source in self._plan.sources:
            if self._plan.restored(source):
                with CheckpointError.within(f"scaffolds.{source}"):
                    readers[source] = self._open_reader(source)
        return readers


def restored_in_graph(assignment: Assignment) -> bool:
    """Returns whether the value is one tensor or a block of it, without further conversion."""
    if not assignment.pieces or assignment.pieces[0].combination is not None:
        return False
    steps = assignment.pieces[0].conversions
    return not steps or (len(steps) == 1 and isinstance(steps[0], Slice))


def restore_operation(
    assignments: Sequence[Assignment],
    variables: Variables,
    bundles: Mapping[str, Bundle],
    *,
    on_value: OnValue,
) -> tf.Operation:
    """Adds the operation that assigns variables from bundles to the default graph.

    Sources are read at the same time, each in chunks one after the other. `on_value` is called
    with every value that is read, from threads of TensorFlow, before the run
    returns.
    """
    chains: dict[tuple[str, str], list[Assignment]] = {}
    for assignment in assignments:
        device = variables[assignment.variable.name].device
        chains.setdefault((assignment.pieces[0].source, device), []).append(assignment)
    ends = []
    with tf.name_scope("restore_bundles"):
        for (source, _), chain in chains.items():
            keys = bundles[source].keys
            # In the order of the file, which is by key.
            chain.sort(key=lambda assignment: keys[assignment.pieces[0].names[0]])
            end: list[tf.Operation] = []
            for chunk in _chunks(chain):
                with tf.control_dependencies(end):
                    end = [_restore_chunk(chunk, variables, bundles[source], on_value=on_value)]
            ends += end
        return tf.group(*ends, name="restore")


def _restore_chunk(
    chunk: Sequence[Assignment],
    variables: Variables,
    bundle: Bundle,
    *,
    on_value: OnValue,
) -> tf.Operation:
    targets = [variables[assignment.variable.name] for assignment in chunk]
    blocks: dict[str, list[SourceTensor]] = {}
    for assignment in chunk:
        blocks.setdefault(assignment.pieces[0].names[0], []).append(assignment.pieces[0])
    with tf.device(_reading_device(targets[0].device)):
        tensors = tf.raw_ops.RestoreV2(
            prefix=bundle.prefix,
            tensor_names=[bundle.keys[name] for name in blocks],
            # Each block alone would read the whole tensor again.
            shape_and_slices=[
                slice_spec(pieces[0]) if len(pieces) == 1 else "" for pieces in blocks.values()
            ],
            dtypes=[tf.as_dtype(pieces[0].tensors[0].dtype) for pieces in blocks.values()],
        )
        values = [
            tensor
            if len(pieces) == 1 or block is None
            else tf.slice(tensor, block.offset, block.size)
            for tensor, pieces in zip(tensors, blocks.values(), strict=True)
            for block in map(_block, pieces)
        ]

        def check(*arrays: NDArray[Any]) -> None:
            for assignment, array in zip(chunk, arrays, strict=True):
                on_value(assignment, np.asarray(array))

        # One operation for a chunk: one for each tensor would be thousands of operations.
        checks = tf.numpy_function(check, values, [])
    for variable, value in zip(targets, values, strict=True):
        value.set_shape(variable.shape)
    return tf.group(
        checks,
        *(
            variable.assign(value, read_value=False)
            for variable, value in zip(targets, values, strict=True)
        ),
    )


def _reading_device(device: str) -> str:
    """Returns the CPU that reads the files for variables of a device."""
    place = tf.DeviceSpec.from_string(device)
    if place.job == PS:
        # A parameter server may not have the files, and has no Python function of this process.
        place = place.replace(job=CHIEF, task=0)
    return str(place.replace(device_type="CPU", device_index=0).to_string())


def slice_spec(piece: SourceTensor) -> str:
    """Returns how `RestoreV2` spells the block to read of a tensor; empty for the whole."""
    block = _block(piece)
    if block is None:
        return ""
    ranges = (f"{at},{size}" for at, size in zip(block.offset, block.size, strict=True))
    return f"{' '.join(map(str, piece.tensors[0].shape))} {':'.join(ranges)}"


def _block(piece: SourceTensor) -> Slice | None:
    return next((step for step in piece.conversions if isinstance(step, Slice)), None)


def _chunks(assignments: Sequence[Assignment]) -> Iterator[list[Assignment]]:
    """Yields the assignments in chunks of at most `CHUNK_BYTES`, a larger tensor alone."""
    chunk: list[Assignment] = []
    size = 0
    for assignment in assignments:
        needed, names = assignment.variable.tensor.bytes, assignment.pieces[0].names
        if chunk and size + needed > CHUNK_BYTES and chunk[-1].pieces[0].names != names:
            yield chunk
            chunk, size = [], 0
        chunk.append(assignment)
        size += needed
    if chunk:
        yield chunk
