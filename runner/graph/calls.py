"""Errors of a graph's operations, with the key of the configuration that they come from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from runner.config.schema import RunConfig
from runner.errors import UserCodeError
from runner.internals.tensorflow import called_functions, function_nodes
from runner.system.user_code import raised_by_operation

_HERE = Path(__file__).parent
_NODE = re.compile(r"(?:\[\[|\{\{node )+([^\s\]}]+)")
_MEASURE = re.compile(r"(loss|metrics|weighted_metrics)\.")


class Calls:
    """The calls of user code in one graph."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._graphs: list[tf.Graph] = []

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
        parts = node.split("/")
        for graph in self._graphs:
            for count in range(len(parts)):
                try:
                    yield graph.get_operation_by_name("/".join(parts[count:]))
                except KeyError:
                    continue
