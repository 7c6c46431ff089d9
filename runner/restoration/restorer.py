"""Carries out a restoration plan in a session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from runner.checkpoints.reader import Bundle, CheckpointReader
from runner.config.choices import Initialize
from runner.errors import CheckpointError, Problem
from runner.restoration import initial_values
from runner.restoration.assigning import Assigner, Assignments, on_processor
from runner.restoration.conversions import Slice
from runner.restoration.graph_restoration import BundleTensor, restore_operation
from runner.restoration.plan import Assignment, RestorationPlan, SourceTensor
from runner.restoration.streaming import (
    batches,
    converted_values,
    in_scaffold,
    is_taken,
    taken_values,
)
from runner.restoration.verification import NonFinite, require_equal, value_hash
from runner.system.imports import paused_collections


class Restorer:
    """Gives every variable that a plan restores its value, in any session of one graph.

    Tensors of TensorFlow bundles that are taken as they are, or a block of them, are each read
    once, into the memory that becomes the variables'. For variables that are on other devices or
    in other processes, and for reference variables, they are read inside the graph, those of all
    sources in one run. Everything else is read tensor by tensor, converted and assigned in batches
    of bounded size. `build` adds the operations; restoring adds none, however often.
    """

    def __init__(
        self,
        plan: RestorationPlan,
        variables: Mapping[str, tf.Variable],
        open_reader: Callable[[str], CheckpointReader],
        *,
        initialize: Initialize = Initialize.all,
        verify: bool = False,
    ) -> None:
        """Stores the arguments.

        Args:
          plan: a plan without problems.
          variables: name in the plan -> variable; all global variables of the graph.
          open_reader: returns the reader of the checkpoint of the scaffold it is given.
          initialize: which initializers `build` puts into its operation.
          verify: whether `restore` reads every restored variable back and compares it.
        """
        self._plan, self._variables, self._open_reader = plan, variables, open_reader
        self._initialize, self._verify = initialize, verify
        self._assigner = Assigner(variables.values())
        self._non_finite = NonFinite()
        self._init_op: tf.Operation | None = None
        self._initialized: list[tf.Variable] = []
        self._restore_op: tf.Operation | None = None
        self._in_graph: list[Assignment] = []
        self._taken: dict[str, list[Assignment]] = {}
        self._streamed: list[Assignment] = []

    def build(self, other_inits: Sequence[tf.Operation] = ()) -> tf.Operation:
        """Adds the operations to the default graph, once, and returns the one that initialises.

        Args:
          other_inits: further operations that run before the restoration, in which a variable may
            be read. They do not become part of the operation that is returned.

        Returns:
          The operation that initialises global variables before `restore`: all, or those that the
          restoration does not provably overwrite.

        Raises:
          PlanError: when the plan has problems.
          CheckpointError: when a checkpoint cannot be read.
        """
        if self._init_op is None:
            self._plan.require_sound()
            tensors = self._bundle_tensors(self._readers())
            if tensors:
                self._restore_op = restore_operation(tensors, self._non_finite.look)
            self._assigner.build()
            self._initialized = self._chosen(other_inits)
            self._init_op = tf.compat.v1.variables_initializer(
                self._initialized, name="initialize_before_restore"
            )
        return self._init_op

    @property
    def init_op(self) -> tf.Operation:
        """What `build` returned.

        Raises:
          RuntimeError: when `build` was not called.
        """
        if self._init_op is None:
            raise RuntimeError("Restorer.build must be called before its operation is used")
        return self._init_op

    def initialize(self, session: tf.compat.v1.Session) -> None:
        """Does what the operation that `build` returned does, faster where there is much of it.

        The session's graph optimiser takes a millisecond for a variable's initializer. So where
        the initial values of many small variables are computed alike they are computed outside of
        the session, by one and the same operations; seeds give the values that they would in it.

        Args:
          session: a session of the graph in which `build` was called.

        Raises:
          RuntimeError: when `build` was not called.
        """
        assignments = self._assignments(session)
        singly = [each for each in self._initialized if assignments.singly(each)]
        done = set()
        for group in initial_values.groups(singly):
            for variable, value in initial_values.values(group):
                assignments.assign([(variable, value)])
                done.add(variable.op.name)
        rest = [each.initializer for each in self._initialized if each.op.name not in done]
        if rest:
            session.run(rest if done else self.init_op)

    @paused_collections()
    def restore(self, session: tf.compat.v1.Session) -> None:
        """Assigns every variable that the plan restores.

        Args:
          session: a session of the graph in which `build` was called, after the initialisers ran.

        Raises:
          CheckpointError: when a source is damaged, changed since it was planned, or not finite
            where it must be, and when `verify` finds a difference. The session is then of no use.
          RuntimeError: when `build` was not called.
        """
        assignments = self._assignments(session)
        readers = self._readers()
        self._require_unchanged(readers)
        hashes: dict[str, str] = {}
        if self._restore_op is not None:
            try:
                session.run(self._restore_op)
            except (tf.errors.AbortedError, tf.errors.UnavailableError):
                raise  # A monitored session makes a new session after these.
            except tf.errors.OpError as error:
                raise self._damage(readers, self._in_graph, self._error(error)) from error
        streamed, look = list(self._streamed), self._non_finite.look
        for source, taken in self._taken.items():
            if not assignments.direct:
                streamed += taken
                continue
            try:
                for each, value in taken_values(source, readers[source], taken, look):
                    if self._verify:
                        hashes[each.variable.name] = value_hash(value)
                    assignments.assign([(self._variables[each.variable.name], value)])
            except CheckpointError as error:
                raise self._damage(readers, taken, error) from error
        for batch in batches(streamed, self._variables):
            values = self._batch_values(session, batch, readers)
            if self._verify:
                hashes |= {each.variable.name: value_hash(value) for each, value in values}
            assignments.assign(
                [(self._variables[each.variable.name], value) for each, value in values]
            )
        self._non_finite.report(self._paths(), self._plan.finite)
        if self._verify:
            for each, value in converted_values(self._in_graph, readers, {}):
                hashes[each.variable.name] = value_hash(value)
            restored = [each for each in self._plan.assignments if each.pieces]
            for batch in batches(restored, self._variables):
                require_equal(session, hashes, self._variables, batch)

    def _assignments(self, session: tf.compat.v1.Session) -> Assignments:
        if self._init_op is None:
            raise RuntimeError("Restorer.build must be called before the graph is finalised")
        return self._assigner.bind(session)

    def _readers(self) -> dict[str, CheckpointReader]:
        used = {piece.source for each in self._plan.assignments for piece in each.pieces}
        readers = {}
        for source in self._plan.sources:
            if source in used:
                try:
                    readers[source] = self._open_reader(source)
                except CheckpointError as error:
                    raise in_scaffold(source, error) from error
        return readers

    def _bundle_tensors(self, readers: Mapping[str, CheckpointReader]) -> list[BundleTensor]:
        """Sorts the assignments into those done inside the graph, which it returns, and others."""
        bundles = {source: reader.bundle() for source, reader in readers.items()}
        tensors = []
        for each in self._plan.assignments:
            if not each.pieces:
                continue
            piece, variable = each.pieces[0], self._variables[each.variable.name]
            bundle = bundles[piece.source]
            if bundle is None or not is_taken(each):
                self._streamed.append(each)
            elif on_processor(variable):
                self._taken.setdefault(piece.source, []).append(each)
            else:
                tensors.append(_bundle_tensor(piece, bundle, variable))
                self._in_graph.append(each)
        return tensors

    def _chosen(self, other_inits: Sequence[tf.Operation]) -> list[tf.Variable]:
        variables = list(self._variables.values())
        if self._initialize is Initialize.all:
            return variables
        overwritten = {
            self._variables[each.variable.name].op.name
            for each in self._plan.assignments
            if each.pieces and not any(piece.needs_initial for piece in each.pieces)
        }
        return remaining(variables, overwritten, other_inits)

    def _batch_values(
        self,
        session: tf.compat.v1.Session,
        batch: Sequence[Assignment],
        readers: Mapping[str, CheckpointReader],
    ) -> list[tuple[Assignment, NDArray[Any]]]:
        kept = {
            each.variable.name: self._variables[each.variable.name]
            for each in batch
            if any(piece.needs_initial for piece in each.pieces)
        }
        initial = session.run(kept) if kept else {}
        return list(converted_values(batch, readers, initial, self._non_finite.look))

    def _require_unchanged(self, readers: Mapping[str, CheckpointReader]) -> None:
        """Checks that bundles, whose digest is known without reading them, are as planned."""
        problems = []
        for source, reader in readers.items():
            planned = self._plan.sources[source]
            if planned is None:
                raise ValueError(f"the plan restores from {source}, which has no checkpoint")
            if reader.bundle() is None:
                continue
            digest = reader.spec().digest
            if planned.digest not in ("", digest):
                problems.append(
                    Problem(
                        f"scaffolds.{source}: {planned.path} has changed since it was planned",
                        f"its digest is {digest}, in the plan {planned.digest}",
                        "wait until it is written, and start again",
                    )
                )
        if problems:
            raise CheckpointError(*problems)

    def _damage(
        self,
        readers: Mapping[str, CheckpointReader],
        assignments: Sequence[Assignment],
        error: CheckpointError,
    ) -> CheckpointError:
        """Reads tensor by tensor to find all that are damaged."""
        problems: list[Problem] = []
        for each in assignments:
            try:
                for _ in converted_values([each], readers, {}):
                    pass
            except CheckpointError as found:
                problems += found.problems
        return CheckpointError(*problems) if problems else error

    def _error(self, error: tf.errors.OpError) -> CheckpointError:
        paths = ", ".join(self._paths().values())
        return CheckpointError(
            Problem(f"{paths} cannot be restored", str(error).partition("\n")[0])
        )

    def _paths(self) -> dict[str, str]:
        return {name: spec.path for name, spec in self._plan.sources.items() if spec is not None}


def _bundle_tensor(piece: SourceTensor, bundle: Bundle, variable: tf.Variable) -> BundleTensor:
    block = piece.conversions[0] if piece.conversions else None
    return BundleTensor(
        piece.source,
        bundle.prefix,
        piece.tensor.name,
        bundle.keys[piece.tensor.name],
        piece.tensor.shape,
        block.offset if isinstance(block, Slice) else None,
        variable,
    )


def remaining(
    variables: Sequence[tf.Variable],
    overwritten: Collection[str],
    others: Iterable[tf.Operation] = (),
) -> list[tf.Variable]:
    """Returns the variables whose initializer must run, in their order.

    A variable that is going to be overwritten is left out, unless something that runs before the
    restoration reads it: another variable's initializer, or one of `others`, directly or through
    any operations between. What its own initializer reads is then read too.

    Args:
      variables: all variables of the graph.
      overwritten: the names of the operations of those whose whole value is restored.
      others: operations besides the initializers that run before the restoration.
    """
    by_handle = {variable.op.name: variable for variable in variables}
    by_initializer = {variable.initializer.name: variable for variable in variables}
    needed = {name for name in by_handle if name not in overwritten}
    pending = list(others)
    for name in needed:
        pending += _inputs(by_handle[name].initializer, initializes=True)
    seen = set()
    while pending:
        op = pending.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        # An initializer met here runs anyway, as somebody's control input.
        variable = by_handle.get(op.name, by_initializer.get(op.name))
        if variable is not None and variable.op.name not in needed:
            needed.add(variable.op.name)
            pending += _inputs(variable.initializer, initializes=True)
        pending += _inputs(op, initializes=op.name in by_initializer)
    return [variable for variable in variables if variable.op.name in needed]


def _inputs(op: tf.Operation, *, initializes: bool) -> list[tf.Operation]:
    """Returns what runs before the operation; an initializer does not read what it assigns."""
    inputs = op.inputs[1:] if initializes else op.inputs
    return [*(each.op for each in inputs), *op.control_inputs]
