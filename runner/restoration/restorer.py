"""Carries out a restoration plan in a session."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.checkpoints.reader import CheckpointReader
from runner.config.choices import Initialize
from runner.errors import CheckpointError, Problem
from runner.restoration.plan import Assignment, RestorationPlan
from runner.restoration.reading import (
    NonFinite,
    assign,
    batches,
    converted_values,
    in_scaffold,
    restore_operation,
    restored_in_graph,
)


class Restorer:
    """Gives every variable that a plan restores its value, in any session of one graph.

    Everything is initialised first, or with `initialize: remaining` what is not overwritten; then
    it is restored. Tensors of TensorFlow bundles that are taken as they are, or a block of them,
    are read inside the graph, those of all sources in one run. Everything else is read tensor by
    tensor, converted and assigned in batches of bounded size. `build` adds the operations;
    restoring adds none, however often.

    Args:
      plan: a plan without problems.
      variables: name in the plan -> variable; all global variables of the graph.
      open_reader: returns the reader of the checkpoint of the scaffold it is given.
      initialize: which initializers `build` puts into its operation.
      verify: whether `restore` reads every restored variable back and compares it.
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
        self._plan, self._variables, self._open_reader = plan, variables, open_reader
        self._initialize, self._verify = initialize, verify
        self._non_finite = NonFinite()
        self._init_op: tf.Operation | None = None
        self._restore_op: tf.Operation | None = None
        self._in_graph: list[Assignment] = []
        self._streamed: list[Assignment] = []

    def build(self, other_inits: Sequence[tf.Operation] = ()) -> tf.Operation:
        """Adds the operations to the default graph, once, and returns the one that initialises.

        Args:
          other_inits: further operations that run before the restoration, which may read a
            variable. They do not become part of the operation that is returned.

        Returns:
          The operation that initialises global variables before `restore`: all, or those that the
          restoration does not provably overwrite.

        Raises:
          PlanError: when the plan has problems.
          CheckpointError: when a checkpoint cannot be read.
        """
        if self._init_op is None:
            self._plan.require_sound()
            readers = self._readers()
            bundles = {name: found for name in readers if (found := readers[name].bundle())}
            restored = [each for each in self._plan.assignments if each.pieces]
            for each in restored:
                in_graph = each.pieces[0].source in bundles and restored_in_graph(each)
                (self._in_graph if in_graph else self._streamed).append(each)
            if self._in_graph:
                self._restore_op = restore_operation(
                    self._in_graph, self._variables, bundles, self._non_finite.look
                )
            self._init_op = tf.compat.v1.variables_initializer(
                self._initialized(other_inits), name="initialize_before_restore"
            )
        return self._init_op

    @property
    def init_op(self) -> tf.Operation:
        """The operation that `build` returned.

        Raises:
          RuntimeError: when `build` was not called.
        """
        if self._init_op is None:
            raise RuntimeError("Restorer.build must be called before its operation is used")
        return self._init_op

    def restore(self, session: tf.compat.v1.Session) -> None:
        """Assigns every variable that the plan restores.

        Raises:
          CheckpointError: when a source is damaged, changed since it was planned, or not finite
            where it must be, and when `verify` finds a difference. The session is then of no use.
          RuntimeError: when `build` was not called.
        """
        if self._init_op is None:
            raise RuntimeError("Restorer.build must be called before restore")
        readers = self._readers()
        self._run_restore_op(session, readers)
        hashes: dict[str, str] = {}
        for batch in batches(self._streamed, self._variables):
            kept = {
                each.variable.name: self._variables[each.variable.name]
                for each in batch
                if any(piece.needs_initial for piece in each.pieces)
            }
            initial = session.run(kept) if kept else {}
            values = list(converted_values(batch, readers, initial, self._non_finite.look))
            if self._verify:
                hashes |= {each.variable.name: value_hash(value) for each, value in values}
            assign(session, [(self._variables[each.variable.name], v) for each, v in values])
        paths = {name: spec.path for name, spec in self._plan.sources.items() if spec is not None}
        self._non_finite.report(paths, self._plan.finite)
        if self._verify:
            for each, value in converted_values(self._in_graph, readers, {}):
                hashes[each.variable.name] = value_hash(value)
            for batch in batches([*self._in_graph, *self._streamed], self._variables):
                require_equal(session, hashes, self._variables, batch)

    def _readers(self) -> dict[str, CheckpointReader]:
        used = {
            piece.source for assignment in self._plan.assignments for piece in assignment.pieces
        }
        readers = {}
        for source in self._plan.sources:
            if source in used:
                try:
                    readers[source] = self._open_reader(source)
                except CheckpointError as error:
                    raise in_scaffold(source, error) from error
        return readers

    def _initialized(self, other_inits: Sequence[tf.Operation]) -> list[tf.Variable]:
        variables = list(self._variables.values())
        if self._initialize is Initialize.all:
            return variables
        overwritten = {
            self._variables[assignment.variable.name].op.name
            for assignment in self._plan.assignments
            if assignment.pieces and not any(piece.needs_initial for piece in assignment.pieces)
        }
        return remaining(variables, overwritten, other_inits)

    def _run_restore_op(
        self, session: tf.compat.v1.Session, readers: Mapping[str, CheckpointReader]
    ) -> None:
        if self._restore_op is None:
            return
        try:
            session.run(self._restore_op)
        except (tf.errors.AbortedError, tf.errors.UnavailableError):
            raise  # A monitored session makes a new session after these.
        except tf.errors.OpError as error:
            problems: list[Problem] = []
            for each in self._in_graph:  # Read one by one to find all that are damaged.
                try:
                    for _ in converted_values([each], readers, {}):
                        pass
                except CheckpointError as found:
                    problems += found.problems
            paths = ", ".join(each.path for each in self._plan.sources.values() if each is not None)
            reason = Problem(f"{paths} cannot be restored", str(error).partition("\n")[0])
            raise CheckpointError(*(problems or [reason])) from error


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
        # An initializer found here runs anyway, as the control input of another operation.
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


def value_hash(value: NDArray[Any]) -> str:
    """Returns a hash of dtype, shape and every byte of a value; of strings, of their characters."""
    digest = hashlib.blake2b(f"{value.dtype.name} {value.shape}".encode(), digest_size=16)
    if value.dtype.kind == "O":
        for each in value.ravel():
            data = each if isinstance(each, bytes) else str(each).encode()
            digest.update(f"{len(data)} ".encode() + data)
    elif value.size:
        # Some element types (those of `ml_dtypes`) have no buffer of their own.
        digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def require_equal(
    session: tf.compat.v1.Session,
    expected: Mapping[str, str],
    variables: Mapping[str, tf.Variable],
    assignments: Sequence[Assignment],
) -> None:
    """Reads variables back and compares their hashes with the `expected` ones of their sources.

    Raises:
      CheckpointError: with every variable that differs.
    """
    values = session.run([variables[assignment.variable.name] for assignment in assignments])
    problems = []
    for each, value in zip(assignments, values, strict=True):
        found = value_hash(np.asarray(value))
        name = each.variable.name
        if found != expected[name]:
            sources = ", ".join(
                f"{'+'.join(piece.names)} of {piece.source}" for piece in each.pieces
            )
            problems.append(
                Problem(
                    f"{name} does not hold what was restored from {sources}",
                    f"its hash is {found}, that of its source {expected[name]}",
                    "look for what else assigns to it during the start (an init_fn, a hook, "
                    "another restore) and remove it; start again if the checkpoint was being "
                    "written; if neither, memory or disk gave wrong bytes: restore the file from a "
                    "copy",
                )
            )
    if problems:
        raise CheckpointError(*problems)
