"""Errors of traced steps, with the frames of the user's code that they come from."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from runner.config.schema import RunConfig
from runner.errors import Problem, UserCodeError
from runner.graph.calls import Calls
from runner.graph.contracts import overrides
from runner.graph.traces import Imported, Trace
from runner.system.user_code import calling

# In the messages of `tensor.numpy()`, `float(tensor)`, `if tensor:`, and the same of variables.
_READS_A_VALUE = ("symbolic", "SymbolicTensor", "ResourceVariable", "eager execution is enabled")


class StepErrors(Calls):
    """Explains the errors of imported traces by the operations that the user's code made."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._imported: list[tuple[Imported, Trace]] = []

    def add(self, imported: Imported, trace: Trace) -> None:
        """Adds a trace of the session's graph."""
        self._imported.append((imported, trace))
        self._graphs += trace.graphs()

    def _operations(self, node: str) -> Iterator[tf.Operation]:
        for imported, _ in self._imported:
            if node.startswith(imported.prefix):
                yield from super()._operations(node.removeprefix(imported.prefix))
        yield from super()._operations(node)


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
