"""Calls an experiment's model, loss and metrics, and names the one that an error comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from runner.config.schema import RunConfig
from runner.errors import Problem, UserCodeError
from runner.internals.tensorflow import called_functions, function_nodes
from runner.system.user_code import calling, raised_by_operation

_NODE = re.compile(r"(?:\[\[|\{\{node )+([^\s\]}]+)")
_MEASURE = re.compile(r"(loss|metrics|weighted_metrics)\.")
_NOT_IN_SCOPES = re.compile(r"[^A-Za-z0-9_.]")


class Calls:
    """The calls in one graph."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._graphs: list[tf.Graph] = []

    def model(self, model: Any, features: Any, *, training: bool) -> Any:
        """Returns the model's outputs, its variables named as ever."""
        self._graphs.append(tf.compat.v1.get_default_graph())
        given = f"{self.config.model['_target_']} was called with features {_described(features)}"
        with calling("model", given):
            outputs = model(features, training=training)
        if outputs is None and self.config.loss:
            remedy = "end its `call` with `return`"
            raise UserCodeError(Problem(f"model returned None\n  {given}", "", remedy), "")
        return outputs

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Reports errors of the graph's operations in a session with the place they come from.

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
        made = [operation for node in nodes for operation in self._found(node)]
        made += [operation for node in nodes[:1] if not made for operation in self._calling(node)]
        frames = list(made[0].traceback) if made else []
        files = [frame.filename for frame in frames]
        if __file__ in files:  # What follows is the experiment's.
            frames = frames[len(files) - files[::-1].index(__file__) :]
        names = [*nodes, *(operation.name for operation in made)]
        parts = [part for name in names for part in name.split("/")]
        measured = [part for part in parts if part == "loss" or _MEASURE.match(part)]
        place = (measured or ["model" if made else "the training step"])[0]
        return raised_by_operation(place, error, frames)

    def _calling(self, node: str) -> list[tf.Operation]:
        """Returns what calls the function, such as a condition's, that a node without scope is in.

        There is nothing where several functions have such a node.
        """
        found = [
            operation
            for graph in self._graphs
            for operation in graph.get_operations()
            for function in called_functions(operation.node_def)
            if any(each.name == node for each in function_nodes(graph, function))
        ]
        return found if len({operation.name for operation in found}) == 1 else []

    def _found(self, node: str) -> Iterator[tf.Operation]:
        """Yields the operation of the forward pass from which an inlined node was made."""
        parts = node.split("/")
        for graph in self._graphs:
            for count in range(len(parts)):
                try:
                    yield graph.get_operation_by_name("/".join(parts[count:]))
                except KeyError:
                    continue


def per_example(place: str, function: Any, labels: Any, outputs: Any) -> tf.Tensor:
    """Returns the values of a function that is a loss or a metric; a metric's are floats.

    `place` is its key in the configuration, which becomes the name scope of its operations.
    """
    given = f"it was called with labels {_described(labels)}, outputs {_described(outputs)}"
    with tf.name_scope(_NOT_IN_SCOPES.sub("_", place)), calling(place, given):
        value = function(labels, outputs)
        if value is None:
            remedy = "end it with `return`"
            raise UserCodeError(Problem(f"{place} returned None", "", remedy), "")
        value = tf.convert_to_tensor(value)
        # A mean of whole numbers would be one too, and of booleans there is none.
        floats = place.startswith("loss") or value.dtype.is_floating
        return value if floats else tf.cast(value, tf.float32)


def _described(value: Any) -> str:
    """Returns types and shapes of tensors, e.g. `float32 [None, 8]`."""

    def describe(each: Any) -> str:
        shape = each.shape
        return f"{each.dtype.name} {shape if shape.rank is None else shape.as_list()}"

    described: Any = tf.nest.map_structure(describe, value)
    return str(described).replace("'", "")
