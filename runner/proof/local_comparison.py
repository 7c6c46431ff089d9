"""Compares each layer where it gets what was recorded, so that no difference comes from before it.

A layer that is called several times has one record: the model may make its calls in another order,
so the call that is closest to the record is the one that was recorded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from runner.internals.keras import ReachedLayerError, layers_of, replaced_calls
from runner.planning.comparison import (
    Arrangement,
    Comparison,
    arranged,
    arrangements,
    compare,
    difference,
    factor_to,
)
from runner.proof.feeding import Values, activation_of, array_of

# How far off a layer may be and still hand on its record.
NEAR = 0.05
# What may follow a layer in the source.
_ACTIVATIONS = (
    *(keras.activations.relu, keras.activations.relu6, keras.activations.gelu),
    *(keras.activations.silu, keras.activations.hard_silu, keras.activations.sigmoid),
    *(keras.activations.hard_sigmoid, keras.activations.tanh, keras.activations.elu),
    *(keras.activations.leaky_relu, keras.activations.softplus, keras.activations.selu),
)


@dataclass(frozen=True)
class Layer:
    """A layer that holds the tensors of a module.

    Attributes:
      module: the module.
      path: the layer's name in the plan.
      layer: the layer.
      records: what modules computed.
      behind: the module that was recorded next; empty where that has tensors.
      must_fit: whether another shape than the record's is a difference.
      is_part: whether it has a part of the module's tensors alone, so that only agreement counts.
      is_mixed: whether it has tensors of several modules.
      added: its bias, along the axes of the record, where the module computes without it.
    """

    module: str
    path: str
    layer: Any
    records: Mapping[str, NDArray[Any]]
    behind: str = ""
    must_fit: bool = False
    is_part: bool = False
    is_mixed: bool = False
    added: NDArray[Any] | None = None

    @property
    def record(self) -> NDArray[Any]:
        """The record of what the module computed; not held in memory."""
        record = self.records[self.module]
        return record if self.added is None else record + self.added


@dataclass(frozen=True)
class _HandedOn:
    """The record of a layer in the arrangement of what it computes."""

    layer: Layer
    arrangement: Arrangement

    def value(self, dtype: Any) -> Any:
        """Reads it."""
        array = self.arrangement.of(self.layer.record)
        return keras.ops.convert_to_tensor(np.ascontiguousarray(array), dtype=dtype)


@dataclass
class _Pass:
    """One call of the model.

    Attributes:
      compared: `id` of a `Layer` -> its comparison.
      inputs: `id` of a layer, in the order of the model -> a digest of its first input.
      calls: `id` of a layer -> which of its calls was compared, from 1.
      handed_on: `id` of a layer -> the record that it hands on.
      behind: `id` of a layer that differs -> what is called behind it, of which its record may be.
    """

    compared: dict[int, Comparison] = field(default_factory=dict)
    inputs: dict[int, object] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    handed_on: dict[int, _HandedOn] = field(default_factory=dict)
    behind: dict[int, Any] = field(default_factory=dict)


class LocalComparison:
    """Compares the layers of one model; see the module."""

    def __init__(self, model: Any, inputs: Any, layers: Sequence[Layer], tolerance: float) -> None:
        self._model, self._inputs, self.tolerance = model, inputs, tolerance
        self._all = layers
        self._layers: dict[int, list[Layer]] = {}
        for layer in layers:
            self._layers.setdefault(id(layer.layer), []).append(layer)
        # The pass in which the recorded calls are known.
        self._first = _Pass()

    def compared(self) -> Iterator[Comparison]:
        """Yields the comparisons, one a module, in the order of the layers."""
        self._first = first = self._call()
        if {*first.calls.values()} > {1}:
            self._first = first = self._call()
        best: dict[str, Comparison] = {}
        for layer in self._all:
            comparison = first.compared.get(id(layer))
            if comparison is None or ("shapes" in comparison.note and not layer.must_fit):
                continue
            # A container's record may be of what it does behind the layer.
            alternatives = (first.compared[id(one)] for one in self._layers[id(layer.layer)])
            is_known = layer.is_part or any(one.agrees for one in alternatives)
            if is_known and not comparison.agrees:
                continue
            if layer.module not in best or comparison.relative < best[layer.module].relative:
                best[layer.module] = comparison
        # In the order of the model: names, and with them records, may be exchanged.
        for key in first.inputs:
            some = self._layers.get(key, [])
            theirs = [(best[one.module], one.path) for one in some if one.module in best]
            closest = [one for one, path in theirs if one.layer == path]
            yield from closest
            # One with tensors of several modules may be closest to none of them.
            if not closest and any(one.is_mixed for one in some):
                comparison = min(
                    (first.compared[id(one)] for one in some), key=lambda one: one.relative
                )
                if not comparison.agrees and "shapes" not in comparison.note:
                    yield comparison

    def proven(self, compared: Iterable[Comparison]) -> set[str]:
        """Returns the paths of layers whose record shows that they have the right tensors.

        One that has a part of its module's tensors may agree with another part's record.
        """
        whole = {(one.module, one.path) for one in self._all if not one.is_part}
        agreeing = (one for one in compared if one.agrees)
        return {one.layer for one in agreeing if (one.module, one.layer) in whole} - self.siblings

    def has_named_tensors(self, compared: Comparison) -> bool:
        """Whether a layer agrees with the module that all its tensors have the names of."""
        names = compared.module, compared.layer
        return compared.agrees and any(
            (one.module, one.path) == names and not one.is_mixed and not one.is_part
            for one in self._all
        )

    def other_module(self, compared: Comparison) -> str:
        """Returns the module of other layers that a layer computes, or an empty name."""
        reader = next((one.layer for one in self._all if one.path == compared.layer), None)
        if reader is None:
            return ""
        value = array_of(self._reach(reader, ()))
        # A module may have recorded what an activation behind it computed.
        values = [value, *(np.asarray(function(value)) for function in _ACTIVATIONS)]
        others = (one for one in self._all if one.path != compared.layer and not one.is_part)
        alike = (
            one.module
            for one in others
            for _, array in arranged(one.record, value.shape, activation_of(reader))
            # A module that is dead on these inputs tells nothing.
            if np.ptp(array)
            and any(difference(value, array)[0] <= self.tolerance for value in values)
        )
        return next(alike, "")

    @property
    def siblings(self) -> set[str]:
        """The paths of layers that read what another one reads, and compute the same shape.

        If their tensors are exchanged, each may agree with the other one's record.
        """
        groups: dict[Any, list[int]] = {}
        for layer, handed_on in self._first.handed_on.items():
            if len(layers_of(self._layers[layer][0].layer)) == 1:
                key = self._first.inputs[layer], handed_on.arrangement.shape
                groups.setdefault(key, []).append(layer)
        several = (group for group in groups.values() if len(group) > 1)
        return {self._layers[layer][0].path for group in several for layer in group}

    def run(self, compared: Comparison, computing: Collection[str]) -> Values:
        """Returns what a layer computes with the model's present values, and its record.

        The layers of the paths in `computing` hand on what they compute.
        """
        names = compared.module, compared.layer
        reader = next(one for one in self._all if (one.module, one.path) == names)
        others = {id(one.layer) for one in self._all if one.path in computing}
        outputs = keras.tree.flatten(self._reach(reader.layer, others))[:1]
        if (behind := self._first.behind.get(id(reader.layer))) is not None:
            outputs += keras.tree.flatten(behind(outputs[0]))
        function = activation_of(reader.layer)
        pairs = [
            (output, array)
            for output in outputs
            for _, array in arranged(reader.record, array_of(output).shape, function)
        ]
        return [min(pairs, key=lambda pair: difference(array_of(pair[0]), pair[1]))]

    def _reach(self, reader: Any, computing: Collection[int]) -> Any:
        """Returns what a layer computes in the call that was recorded.

        Layers whose `id` is in `computing` do not hand on their records.
        """
        outputs: list[Any] = []
        counts = Counter[int]()

        def on_call(original: Any, layer: Any, *arguments: Any, **keywords: Any) -> Any:
            counts[id(layer)] += 1
            is_recorded = counts[id(layer)] == self._first.calls.get(id(layer))
            hands_on = is_recorded and layer is not reader and id(layer) not in computing
            known = self._first.handed_on.get(id(layer)) if hands_on else None
            # What only hands on its record need not compute, unless the reader may be within it.
            if known is not None and len(layers_of(layer)) == 1:
                return known.value(layer.compute_dtype)
            output = original(layer, *arguments, **keywords)
            if layer is reader and is_recorded:
                outputs.append(output)
                raise ReachedLayerError
            return output if known is None else known.value(output.dtype)

        with replaced_calls(on_call), suppress(ReachedLayerError):
            self._model(self._inputs, training=False)
        return outputs[0]

    def _call(self) -> _Pass:
        """Calls the model, and compares its layers."""
        result = _Pass()

        def on_call(original: Any, layer: Any, *arguments: Any, **keywords: Any) -> Any:
            output = original(layer, *arguments, **keywords)
            read = _digest((arguments, keywords))
            before = behind.get(read)
            if before is not None and not layer.weights:
                values = keras.tree.flatten((arguments, keywords))
                is_only = sum(hasattr(value, "numpy") for value in values) == 1
                activation = layer if is_only else None
                self._compare_behind(before, output, result, activation=activation)
            if id(layer) not in self._layers:
                return output
            counts[id(layer)] += 1
            recorded = self._first.calls.get(id(layer), counts[id(layer)])
            if counts[id(layer)] != recorded:
                return output
            compared = self._compare(layer, output)
            if not _is_closer(compared, result.compared):
                return output
            result.compared |= compared
            result.inputs[id(layer)], result.calls[id(layer)] = read, recorded
            handed_on = self._closest(layer, output, result)
            if handed_on is None or isinstance(output, list | tuple):
                behind[_digest(output)] = self._layers[id(layer)][-1]
                return output
            result.handed_on[id(layer)] = handed_on
            replacement = handed_on.value(output.dtype)
            for one in filter(attrgetter("behind"), self._layers[id(layer)]):
                behind[_digest(replacement)] = one
            return replacement

        behind: dict[object, Layer] = {}
        counts = Counter[int]()
        with replaced_calls(on_call):
            self._model(self._inputs, training=False)
        return result

    def _compare(self, layer: Any, output: Any) -> dict[int, Comparison]:
        """Compares a layer with its modules; returns `id` of a `Layer` -> comparison."""
        value, result = array_of(output), dict[int, Comparison]()
        function = activation_of(layer)
        for one in self._layers[id(layer)]:
            comparison = compare(
                one.module, one.path, value, one.record, self.tolerance, activation=function
            )
            if not comparison.agrees and isinstance(layer, keras.layers.Embedding):
                comparison = _scaled(one, value, self.tolerance) or comparison
            result[id(one)] = comparison
        return result

    def _closest(self, layer: Any, output: Any, result: _Pass) -> _HandedOn | None:
        """Returns the record that is closest to what a layer computes, if one is near."""
        value, function = array_of(output), activation_of(layer)
        is_finite, numbers = bool(np.isfinite(value).all()), np.nan_to_num(value)
        distances: list[tuple[float, _HandedOn]] = []
        for one in self._layers[id(layer)]:
            for way, array in arranged(one.record, value.shape, function):
                distances.append((difference(numbers, array)[0], _HandedOn(one, way)))
            if result.compared[id(one)].agrees and _is_nonlinear(function):
                self._compare_behind(one, output, result)
        relative, handed_on = min(distances, key=itemgetter(0), default=(math.inf, None))
        # The record of a layer that is farther off may be of what follows it; NaN is wrong, but the
        # record of its module may be another part's.
        is_wrong = not is_finite and not any(one.is_part for one in self._layers[id(layer)])
        return handed_on if relative < NEAR or is_wrong else None

    def _compare_behind(
        self, layer: Layer, output: Any, result: _Pass, *, activation: Any = None
    ) -> None:
        """Compares what follows a layer with the source's, if that is an activation."""
        value, known = array_of(output), result.compared[id(layer)]
        if not known.agrees:
            if activation is not None:
                result.behind.setdefault(id(layer.layer), activation)
            function = activation_of(layer.layer)
            names = layer.module, layer.path
            behind = compare(*names, value, layer.record, self.tolerance, activation=function)
            # Of another shape than the layer's output, only agreement counts.
            if behind.agrees or (behind.relative < known.relative and not known.note):
                result.compared[id(layer)] = behind
            return
        if not layer.behind or not (moved := arrangements(layer.record, value.shape)):
            return
        for array in arrangements(layer.records[layer.behind], value.shape):
            for function in _ACTIVATIONS:
                if difference(np.asarray(function(moved[0])), array)[0] > self.tolerance:
                    continue
                relative, absolute = difference(value, array)
                if relative <= self.tolerance:
                    return
                note = f"{relative:.2g} relative behind it: {function.__name__} in the source"
                result.compared[id(layer)] = replace(
                    known, absolute=absolute, relative=relative, agrees=False, note=note
                )
                return


def _is_closer(compared: Mapping[int, Comparison], known: Mapping[int, Comparison]) -> bool:
    """Whether a call of a layer is closer to a record than those before it, if there are any."""
    before = [known[one].relative for one in compared if one in known]
    return not before or min(one.relative for one in compared.values()) < min(before)


def _scaled(layer: Layer, value: NDArray[Any], tolerance: float) -> Comparison | None:
    """Returns the comparison of a table whose module scales its rows, as Gemma's; else None."""
    for array in arrangements(layer.record, value.shape):
        scaled = (value * factor_to(value, array)).astype(value.dtype)
        comparison = compare(layer.module, layer.path, scaled, array, tolerance)
        if comparison.agrees:
            return comparison
    return None


def _is_nonlinear(function: Any) -> bool:
    return callable(function) and getattr(function, "__name__", "") != "linear"


def _digest(values: Any) -> object:
    """Returns a digest of the first value; what is no tensor has one of its own."""
    first = next(iter(keras.tree.flatten(values)), None)
    return hash(array_of(first).tobytes()) if hasattr(first, "numpy") else object()
