"""Errors of traced steps, with the key of the configuration and the frames that they come from."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from runner.errors import Problem, UserCodeError
from runner.graph.contracts import overrides
from runner.graph.traces import Imported, Trace
from runner.internals.tensorflow import called_functions, function_nodes
from runner.system.user_code import calling, raised_by_operation

# In the messages of `tensor.numpy()`, `float(tensor)`, `if tensor:`, and the same of variables.
_READS_A_VALUE = ("symbolic", "SymbolicTensor", "ResourceVariable", "eager execution is enabled")


_HERE = Path(__file__).parent
_NODE = re.compile(r"(?:\[\[|\{\{node )+([^\s\]}]+)")
_MEASURE = re.compile(r"(loss|metrics|weighted_metrics)\.")


class StepErrors:
    """Explains the errors of imported traces by the operations that the user's code made."""

    def __init__(self) -> None:
        self._imported: list[tuple[Imported, Trace]] = []

    def add(self, imported: Imported, trace: Trace) -> None:
        """Adds a trace of the session's graph."""
        self._imported.append((imported, trace))

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Reports errors of the graph's operations with the configuration's key they come from.

        Raises:
          UserCodeError: in place of TensorFlow's error.
        """
        try:
            yield
        except tf.errors.OpError as error:
            raise self._explained(error) from error

    def _explained(self, error: tf.errors.OpError) -> UserCodeError:
        nodes = _NODE.findall(str(error.message))
        for node in nodes:
            scope, _, last = f"/{node}".rpartition("/")
            if last.startswith("IteratorGetNext"):
                split = "train" if scope.strip("/") not in ("validation", "test") else scope[1:]
                return raised_by_operation(f"data.{split}()", error)
        operations = [operation for node in nodes for operation in self._operations(node)]
        if nodes and not operations:
            operations = self._callers(nodes[0])
        frames = list(operations[0].traceback) if operations else []
        files = [frame.filename for frame in frames]
        runners = [index for index, file in enumerate(files) if Path(file).parent == _HERE]
        if runners:  # The frames after these are the user's, and the libraries'.
            frames = frames[runners[-1] + 1 :]
        names = [*nodes, *(operation.name for operation in operations)]
        parts = [part for name in names for part in name.split("/")]
        measured = [part for part in parts if part == "loss" or _MEASURE.match(part)]
        place = (measured or ["model" if operations else "the training step"])[0]
        return raised_by_operation(place, error, frames)

    def _callers(self, node: str) -> list[tf.Operation]:
        """Returns the operation that calls the only function with a node, e.g. a `tf.cond`.

        Empty where several functions have such a node.
        """
        callers = [
            operation
            for graph in self._graphs
            for operation in graph.get_operations()
            for function in called_functions(operation.node_def)
            if any(inner.name == node for inner in function_nodes(graph, function))
        ]
        return callers if len({operation.name for operation in callers}) == 1 else []

    def _operations(self, node: str) -> Iterator[tf.Operation]:
        """Yields the operations of the forward pass that an inlined node comes from."""
        prefixes = [imported.prefix for imported, _ in self._imported]
        names = [node.removeprefix(prefix) for prefix in prefixes if node.startswith(prefix)]
        for parts in (name.split("/") for name in (*names, node)):
            for graph in self._graphs:
                for count in range(len(parts)):
                    try:
                        yield graph.get_operation_by_name("/".join(parts[count:]))
                    except KeyError:
                        continue

    @property
    def _graphs(self) -> list[tf.Graph]:
        return [graph for _, trace in self._imported for graph in trace.graphs()]


@contextmanager
def naming_calls(model: keras.Model) -> Iterator[None]:
    """Names the errors of Keras's losses and metrics by their keys, within the block.

    A model that computes them itself is left alone.
    """
    places = {"compute_loss": "loss", "compute_metrics": "metrics"}
    named = [name for name in places if not overrides(model, name)]

    def naming(name: str, original: Any) -> Any:
        @functools.wraps(original)
        def called(*arguments: Any, **keywords: Any) -> Any:
            values = [*arguments, *keywords.values()]
            if len(values) > 2 and values[2] is None:  # The outputs of the model.
                remedy = "end its `call` with `return`"
                raise UserCodeError(Problem("model returned None", "", remedy), "")
            with tf.name_scope(places[name]), calling(places[name]):
                return original(*arguments, **keywords)

        return called

    for name in named:
        setattr(model, name, naming(name, getattr(model, name)))
    try:
        yield
    finally:
        for name in named:
            delattr(model, name)


@contextmanager
def values_are_unknown() -> Iterator[None]:
    """Adds cause and remedy to the error of a step that reads a value while it is traced."""
    try:
        yield
    except UserCodeError as error:
        if not any(sign in str(error) for sign in _READS_A_VALUE):
            raise
        problem = replace(
            error.problems[0],
            cause="the step is traced once into a graph, which has no values yet to read in Python",
            remedy="compute it with operations of keras.ops or TensorFlow; or, for a loop of your "
            "own that runs eagerly, start the model by runner.warm_start(model, scaffolds)",
        )
        raise UserCodeError(problem, error.details) from error.__cause__


def described(value: Any) -> str:
    """Describes the types and shapes of nested specs or tensors, e.g. `float32 [None, 8]`."""

    def describe(tensor: Any) -> str:
        if not hasattr(tensor, "dtype"):
            return str(tensor)
        shape = tensor.shape
        return f"{tensor.dtype.name} {shape if shape.rank is None else shape.as_list()}"

    text: Any = tf.nest.map_structure(describe, value)
    return str(text).replace("'", "")
