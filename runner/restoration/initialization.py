"""Which initializers run before a restoration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import tensorflow as tf

VALUE_OF_MODEL = "value_of_model"
"""The name of operations that read the value which a model's variable has outside the session."""

# Stateful operations of initial values whose only effect is their result.
_PURE = ("Random", "Truncated", "Parameterized", "Variable", "VarHandleOp", "ReadVariableOp")


def necessary(
    initializers: Iterable[tf.Operation],
    overwritten: Collection[str],
    others: Iterable[tf.Operation] = (),
    *,
    effects: bool = True,
) -> list[tf.Operation]:
    """Returns the initializers whose run can be observed after the restoration.

    An initial value that is going to be overwritten cannot, unless something that runs before the
    restoration reads it: another initializer, or one of `others`, directly or through any
    operations between. Without them, 1 GB from three bundles takes 0.40 of the time of init and
    restore in a session, and 0.75 with them.

    Args:
      initializers: operations, or groups of them, that run before the restoration.
      overwritten: names of the operations of the variables whose whole value is restored.
      others: further operations that run before it.
      effects: whether an initial value is also necessary where computing it has an effect besides
        the value, such as printing or calling Python.
    """
    single = list(members(initializers))
    inputs: list[tf.Operation] = []
    for op in (*single, *members(others)):
        # An initializer does not read what it assigns, its first input.
        read = op.inputs[1:] if op.type in ("Assign", "AssignVariableOp") else op.inputs
        inputs += [*(tensor.op for tensor in read), *op.control_inputs]
    observed = {op.name for op in _ancestors(inputs)}

    def is_needless(op: tf.Operation) -> bool:
        if op.type not in ("Assign", "AssignVariableOp"):
            return False
        name = op.inputs[0].op.name
        if name not in overwritten or name in observed:
            return False
        return not effects or all(map(_is_pure, _ancestors([op.inputs[1].op, *op.control_inputs])))

    return [op for op in single if not is_needless(op)]


def reads_variables(operation: tf.Operation) -> bool:
    """Whether an operation, or one that runs before it, has a variable as input."""
    ancestors = _ancestors(members([operation]))
    return any(op.type == "VarHandleOp" or op.type.startswith("Variable") for op in ancestors)


def members(operations: Iterable[tf.Operation]) -> Iterator[tf.Operation]:
    """Yields the operations of groups, each once."""
    pending, seen = [*operations][::-1], set()
    while pending:
        op = pending.pop()
        if op.name not in seen:
            seen.add(op.name)
            if op.type == "NoOp":
                pending += op.control_inputs[::-1]
            else:
                yield op


def _ancestors(operations: Iterable[tf.Operation]) -> Collection[tf.Operation]:
    """Returns the operations with all that run before them."""
    pending, seen = [*operations], {}
    while pending:
        op = pending.pop()
        if op.name not in seen:
            seen[op.name] = op
            pending += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return seen.values()


def _is_pure(op: tf.Operation) -> bool:
    reads_model = op.type == "PyFunc" and VALUE_OF_MODEL in op.name
    return reads_model or not op.op_def.is_stateful or op.type.startswith(_PURE)
