"""The calls of a model's layers in their order, and on which variables each one depends."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from runner.internals.keras import layers_of, replaced_calls

# Layers that run their cells in loops of their own are one call, whatever is inside.
LOOPS = (keras.layers.RNN, keras.layers.Bidirectional)


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer; sets of variables are bits, in the order of the names.

    Attributes:
      layer: the layer.
      end: the index behind the calls within it.
      variables: the variables that it reads first, and no call within it does.
      reads: all variables that it reads.
      depends: the variables on which its inputs depend.
      shape: the shape of its first output.
      outputs: how many outputs it has, such as a sequence and states.
    """

    layer: Any
    end: int
    variables: tuple[str, ...]
    reads: int
    depends: int
    shape: tuple[int | None, ...]
    outputs: int


@dataclass(frozen=True)
class _Span:
    """The operations that a call adds to a graph, and its tensors."""

    layer: Any
    start: int
    inputs: Sequence[Any]
    stop: int = 0
    end: int = 0
    outputs: Sequence[Any] = ()


def trace(
    model: Any, variables: Mapping[str, Any], forward: Callable[[], Any]
) -> tuple[list[LayerCall], int]:
    """Traces a model once.

    Args:
      model: the Keras model.
      variables: name -> variable.
      forward: calls the model.

    Returns:
      The calls in the order in which they begin, and the variables on which the outputs depend.
    """
    spans: list[_Span] = []
    inside = inner_layers(model)
    graphs: list[Any] = []

    def record(original: Any, layer: Any, *arguments: Any, **keywords: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        if id(layer) in inside or (graphs and graph is not graphs[0]):
            return original(layer, *arguments, **keywords)
        if not graphs:
            graphs.append(graph)
        at = len(spans)
        spans.append(_Span(layer, _size(graph), _tensors((arguments, keywords))))
        output = original(layer, *arguments, **keywords)
        spans[at] = replace(spans[at], stop=_size(graph), end=len(spans), outputs=_tensors(output))
        return output

    with replaced_calls(record):
        function = tf.function(forward, autograph=False).get_concrete_function()
    flow = _Flow(function, variables)
    return _calls(spans, flow, [*variables]), flow.of(_tensors(function.outputs))


def inner_layers(model: Any) -> set[int]:
    """Returns the `id` of the layers within those that run in loops of their own."""
    loops = [layer for layer in layers_of(model) if isinstance(layer, LOOPS)]
    return {id(part) for loop in loops for part in layers_of(loop) if part is not loop}


def _size(graph: Any) -> int:
    return len(graph.get_operations())


def _tensors(structure: Any) -> list[Any]:
    return [leaf for leaf in keras.tree.flatten(structure) if isinstance(leaf, tf.Tensor)]


class _Flow:
    """The variables on which each tensor of a traced function depends, as bits."""

    def __init__(self, function: Any, variables: Mapping[str, Any]) -> None:
        bits = {id(v.value.handle): 1 << at for at, v in enumerate(variables.values())}
        self._bits = {id(inner): bits.get(id(outer), 0) for outer, inner in function.graph.captures}
        self.read: list[int] = []
        for operation in function.graph.get_operations():
            mask = self.of(operation.inputs)
            # What an operation reads itself: a handle, not the value of another operation.
            direct = 0
            for tensor in operation.inputs:
                if tensor.dtype == tf.resource:
                    direct |= self._bits.get(id(tensor), 0)
            self.read.append(direct)
            for output in operation.outputs:
                self._bits[id(output)] = mask | self._bits.get(id(output), 0)

    def of(self, tensors: Iterable[Any]) -> int:
        """Returns the variables on which tensors depend."""
        mask = 0
        for tensor in tensors:
            mask |= self._bits.get(id(tensor), 0)
        return mask


def _calls(spans: Sequence[_Span], flow: _Flow, names: Sequence[str]) -> list[LayerCall]:
    # The innermost call that reads a variable first decides it.
    reader: dict[int, int] = {}
    owner: dict[int, int] = {}
    for at, span in enumerate(spans):
        for operation in range(span.start, span.stop):
            owner[operation] = at  # Inner calls begin later.
    for operation, mask in enumerate(flow.read):
        for bit in range(mask.bit_length()):
            if mask >> bit & 1 and operation in owner:
                reader.setdefault(bit, owner[operation])
    calls = []
    for at, span in enumerate(spans):
        shape = span.outputs[0].shape if span.outputs else tf.TensorShape(None)
        calls.append(
            LayerCall(
                span.layer,
                span.end,
                tuple(names[bit] for bit in sorted(reader) if reader[bit] == at),
                functools.reduce(operator.or_, flow.read[span.start : span.stop], 0),
                flow.of(span.inputs),
                tuple(shape.as_list()) if shape.rank is not None else (),
                len(span.outputs),
            )
        )
    return calls
