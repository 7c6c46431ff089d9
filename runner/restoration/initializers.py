"""Decides which variables' initializers must run before others are restored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import tensorflow as tf


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
