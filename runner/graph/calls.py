"""Calls an experiment's model, loss and metrics, and names the one that an error comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from runner.config.schema import RunConfig
from runner.errors import Problem, UserCodeError
from runner.system.user_code import calling, raised_by_operation

_NODE = re.compile(r"\[\[(?:\{\{node )?([^\s\]}]+)")
_NOT_IN_SCOPES = re.compile(r"[^A-Za-z0-9_.]")


class Calls:
    """The calls in one graph.

    Args:
      config: the run's configuration, which names what is called.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._graphs: list[tf.Graph] = []
        # Name scope -> the place in the configuration, and the arguments in words.
        self._scopes: dict[str, tuple[str, str]] = {}

    def model(self, model: Any, features: Any, *, training: bool) -> Any:
        """Returns the model's outputs, its variables named as ever."""
        self._graphs.append(tf.compat.v1.get_default_graph())
        given = f"{self.config.model['_target_']} was called with features {_described(features)}"
        with calling("model", given):
            return model(features, training=training)

    def per_example(self, name: str, function: Any, labels: Any, outputs: Any) -> tf.Tensor:
        """Returns the values of the loss or a metric; a metric's are floats.

        Args:
          name: `loss`, or the metric's.
          function: takes labels and outputs.
          labels: of a batch.
          outputs: the model's.
        """
        node: Mapping[str, Any] = self.config.metrics.get(name, self.config.loss)
        place = f"metrics.{name}" if name in self.config.metrics else name
        scope = _NOT_IN_SCOPES.sub("_", place)
        given = (
            f"{node['_target_']} was called with labels {_described(labels)}, "
            f"outputs {_described(outputs)}"
        )
        self._scopes[scope] = place, given
        with tf.name_scope(scope), calling(place, given):
            value = function(labels, outputs)
            if value is None:
                cause, remedy = f"{node['_target_']} ends without a value", "end it with `return`"
                raise UserCodeError(Problem(f"{place} returned None", cause, remedy), "")
            value = tf.convert_to_tensor(value)
            # A mean of whole numbers would be one too, and of booleans there is none.
            floats = name == "loss" or value.dtype.is_floating
            return value if floats else tf.cast(value, tf.float32)

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
        frames = list(made[0].traceback) if made else []
        files = [frame.filename for frame in frames]
        if __file__ in files:  # What follows is the experiment's.
            frames = frames[len(files) - files[::-1].index(__file__) :]
        place, given = "model" if made else "the training step", ""
        for part in (part for node in nodes for part in node.split("/")):
            place, given = self._scopes.get(part, (place, given))
        return raised_by_operation(place, error, frames, given)

    def _found(self, node: str) -> Iterator[tf.Operation]:
        """Yields the operation of the forward pass from which an inlined node was made."""
        parts = node.split("/")
        for graph in self._graphs:
            for count in range(len(parts)):
                try:
                    yield graph.get_operation_by_name("/".join(parts[count:]))
                except KeyError:
                    continue


def _described(value: Any) -> str:
    """Returns types and shapes of tensors, e.g. `float32 [None, 8]`."""

    def describe(each: Any) -> str:
        shape = each.shape
        return f"{each.dtype.name} {shape if shape.rank is None else shape.as_list()}"

    described: Any = tf.nest.map_structure(describe, value)
    return str(described).replace("'", "")
