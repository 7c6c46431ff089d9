"""Finds state of a training step that no checkpoint holds, so that resuming is not exact."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import tensorflow as tf

from runner.tensorflow_internals import function_nodes

# These draw from a generator inside the kernel, which starts anew with every session.
_RANDOM = {
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
}
_PYTHON = {"EagerPyFunc", "PyFunc"}
_SHOWN = 3


def not_resumed_exactly(train_op: tf.Operation) -> list[str]:
    """Returns a line for each kind of state in a training step that checkpoints do not hold.

    Keras's layers draw their random numbers from seeds in variables, which checkpoints do hold.

    Args:
      train_op: runs the step.
    """
    found: dict[str, list[str]] = {}
    for kind, name in _operations(train_op):
        if kind in _RANDOM:
            found.setdefault("random", []).append(f"{name} ({kind})")
        elif kind in _PYTHON:
            found.setdefault("python", []).append(f"{name} ({kind})")
    lines = []
    if "random" in found:
        lines.append(
            f"random numbers: {_listed(found['random'])} keeps its state in no checkpoint, so a "
            "resumed run draws other numbers; tf.random.stateless_* and Keras's layers do not"
        )
    if "python" in found:
        lines.append(
            f"Python in the step: what {_listed(found['python'])} remembers is in no checkpoint, "
            "so a resumed run may differ"
        )
    return lines


def _operations(train_op: tf.Operation) -> Iterator[tuple[str, str]]:
    """Yields kind and name of what an operation runs, also inside functions."""
    pending, seen = deque([train_op]), {train_op}
    functions: set[str] = set()
    while pending:
        operation = pending.popleft()
        yield operation.type, operation.name
        yield from _called(operation.graph, operation.node_def, functions)
        for each in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
            if each not in seen:
                seen.add(each)
                pending.append(each)


def _called(
    graph: tf.Graph, node: tf.compat.v1.NodeDef, seen: set[str]
) -> Iterator[tuple[str, str]]:
    for name in _function_names(node):
        if name in seen:
            continue
        seen.add(name)
        for inner in function_nodes(graph, name):
            yield inner.op, f"{node.name}/{inner.name}"
            yield from _called(graph, inner, seen)


def _function_names(node: tf.compat.v1.NodeDef) -> Iterable[str]:
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (each.name for each in value.list.func)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
