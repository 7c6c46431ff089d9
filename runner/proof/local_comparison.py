"""Compares each layer where it gets what was recorded, so that no difference comes from before it.

Layers side by side that read one input, such as query and key, all agree with their own records
even if their tensors are exchanged. So they hand on each other's record too, and what reads them
must not agree better.

A layer that is called several times has one record: the model may make its calls in another order,
so the call that is closest to the record is the one that was recorded.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeAlias

import keras
import numpy as np
from numpy.typing import NDArray

from runner.internals.keras import ReachedLayerError, layers_of, replaced_calls
from runner.planning.comparison import Comparison, arrangements, compare, difference
from runner.proof.feeding import array_of

# An exchange that brings a reader ten times closer is right; below that, differences are roundings.
MARGIN, _ROUNDING = 10.0, 1e-6
# How far off a layer may be and still hand on its record.
NEAR = 0.05
_Read: TypeAlias = Callable[[], NDArray[Any]]
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
    behind: str
    must_fit: bool
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
    """A record in one arrangement, with the layer's activation where it is of what comes before."""

    layer: Layer
    shape: tuple[int, ...]
    number: int
    after: Any

    def value(self) -> NDArray[Any]:
        """Reads it."""
        array = arrangements(self.layer.record, self.shape)[self.number]
        return np.asarray(self.after(array)) if self.after else array


class _Numbers:
    """Numbers for tensors, as an `id` is given to another one once a tensor is freed."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}
        self._count = itertools.count()

    def __getitem__(self, tensor: Any) -> int:
        known = self._known.get(id(tensor))
        if known is None or known[0]() is not tensor:
            self._known[id(tensor)] = known = _reference(tensor), next(self._count)
        return known[1]


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # Numbers and strings.
        return lambda: value


@dataclass
class _Pass:
    """One call of the model.

    Attributes:
      compared: `id` of a `Layer` -> its comparison.
      inputs: `id` of a layer, in the order of the model -> the number of its first input.
      calls: `id` of a layer -> which of its calls was compared, from 1.
      handed_on: `id` of a layer -> the record that it hands on.
    """

    compared: dict[int, Comparison] = field(default_factory=dict)
    inputs: dict[int, int] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    handed_on: dict[int, _HandedOn] = field(default_factory=dict)


class LocalComparison:
    """Compares the layers of one model; see the module."""

    def __init__(self, model: Any, inputs: Any, layers: Sequence[Layer], tolerance: float) -> None:
        self._model, self._inputs, self.tolerance = model, inputs, tolerance
        self._layers: dict[int, list[Layer]] = {}
        for layer in layers:
            self._layers.setdefault(id(layer.layer), []).append(layer)
        # `id` of a layer -> which of its calls was recorded, once that is known.
        self._recorded: dict[int, int] = {}
        # `id` of a layer -> the record that it hands on, once that is known.
        self._handed_on: dict[int, _HandedOn] | None = None

    def compared(self) -> Iterator[Comparison]:
        """Yields the comparisons, one a module, in the order of the layers."""
        first = self._call({})
        self._recorded = first.calls
        if {*first.calls.values()} > {1}:
            first = self._call({})
        self._handed_on = first.handed_on
        exchanged = self._exchanged(first)
        best: dict[str, Comparison] = {}
        for layer in itertools.chain.from_iterable(self._layers.values()):
            comparison = first.compared.get(id(layer))
            if comparison is None or ("shapes" in comparison.note and not layer.must_fit):
                continue
            # A container's record may be of what it does behind the layer.
            alternatives = (first.compared[id(one)] for one in self._layers[id(layer.layer)])
            is_known = layer.is_part or any(one.agrees for one in alternatives)
            if is_known and not comparison.agrees:
                continue
            comparison = exchanged.get(id(layer), comparison)
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

    @property
    def parts(self) -> set[str]:
        """The paths of the layers of which agreement alone counts; even that may be of another."""
        layers = itertools.chain.from_iterable(self._layers.values())
        return {layer.path for layer in layers if layer.is_part}

    def relative(self, compared: Comparison, changed: Collection[str]) -> float:
        """Returns how far a layer is from a module's record with the model's present values.

        The layers of the paths in `changed` hand on what they compute.
        """
        layers = [*itertools.chain.from_iterable(self._layers.values())]
        names = compared.module, compared.layer
        reader = next(one for one in layers if (one.module, one.path) == names)
        computed = {id(one.layer): None for one in layers if one.path in changed}
        return self._call(computed, reader).compared[id(reader)].relative

    def _call(self, exchange: Mapping[int, _Read | None], reader: Layer | None = None) -> _Pass:
        """Calls the model, up to a reader if one is given.

        Layers in `exchange` hand on these values instead of their records, or what they compute.
        """
        result, numbers = _Pass(), _Numbers()

        def on_call(original: Any, layer: Any, *arguments: Any, **keywords: Any) -> Any:
            known = (self._handed_on or {}).get(id(layer))
            is_read = reader is not None and layer is not reader.layer and id(layer) not in exchange
            if is_read and known is not None and len(layers_of(layer)) == 1:
                counts[id(layer)] += 1
                # What only hands on its record before a reader need not compute.
                if counts[id(layer)] == self._recorded[id(layer)]:
                    return keras.ops.convert_to_tensor(
                        np.ascontiguousarray(known.value()), dtype=layer.compute_dtype
                    )
                return original(layer, *arguments, **keywords)
            output = original(layer, *arguments, **keywords)
            first = next(iter(keras.tree.flatten((arguments, keywords))), None)
            before = behind.get(numbers[first])
            if before is not None and not layer.weights:
                self._compare_behind(before, output, result)
            if id(layer) not in self._layers:
                return output
            counts[id(layer)] += 1
            recorded = self._recorded.get(id(layer), counts[id(layer)])
            if counts[id(layer)] != recorded:
                return output
            compared = self._compare(layer, output)
            if not _is_closer(compared, result.compared):
                return output
            result.compared |= compared
            result.inputs[id(layer)], result.calls[id(layer)] = numbers[first], recorded
            handed_on = self._closest(layer, output, result)
            if self._handed_on is not None:
                handed_on = self._handed_on.get(id(layer))
            if reader is not None and layer is reader.layer:
                raise ReachedLayerError
            read = exchange.get(id(layer), handed_on.value if handed_on else None)
            if isinstance(output, list | tuple) or read is None:
                first = next(iter(keras.tree.flatten(output)), None)
                behind[numbers[first]] = self._layers[id(layer)][-1]
                return output
            if handed_on is not None:
                result.handed_on[id(layer)] = handed_on
            replacement = keras.ops.convert_to_tensor(
                np.ascontiguousarray(read()), dtype=output.dtype
            )
            for one in filter(attrgetter("behind"), self._layers[id(layer)]):
                behind[numbers[replacement]] = one
            return replacement

        behind: dict[int, Layer] = {}
        counts = Counter[int]()
        with replaced_calls(on_call), suppress(ReachedLayerError):
            self._model(self._inputs, training=False)
        return result

    def _compare(self, layer: Any, output: Any) -> dict[int, Comparison]:
        """Compares a layer with its modules; returns `id` of a `Layer` -> comparison."""
        value, result = array_of(output), dict[int, Comparison]()
        function = getattr(layer, "activation", None)
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
        value, closest = array_of(output), math.inf
        handed_on: _HandedOn | None = None
        function = getattr(layer, "activation", None)
        for one in self._layers[id(layer)]:
            for number, array in enumerate(arrangements(one.record, value.shape)):
                for after in (None, function) if function else (None,):
                    relative = difference(value, np.asarray(after(array)) if after else array)[0]
                    # The record of a layer that is farther off may be of what follows it.
                    if relative < min(closest, NEAR):
                        closest = relative
                        handed_on = _HandedOn(one, value.shape, number, after)
            if result.compared[id(one)].agrees and _is_nonlinear(function):
                self._compare_behind(one, output, result)
        return handed_on

    def _compare_behind(self, layer: Layer, output: Any, result: _Pass) -> None:
        """Compares what follows a layer with the source's, if that is an activation."""
        value, known = array_of(output), result.compared[id(layer)]
        if not known.agrees:
            function = getattr(layer.layer, "activation", None)
            names = layer.module, layer.path
            behind = compare(*names, value, layer.record, self.tolerance, activation=function)
            if behind.relative < known.relative:
                result.compared[id(layer)] = behind
            return
        if not layer.behind or not (arranged := arrangements(layer.record, value.shape)):
            return
        for array in arrangements(layer.records[layer.behind], value.shape):
            for function in _ACTIVATIONS:
                if difference(np.asarray(function(arranged[0])), array)[0] > self.tolerance:
                    continue
                relative, absolute = difference(value, array)
                if relative <= self.tolerance:
                    return
                note = f"{relative:.2g} relative behind it: {function.__name__} in the source"
                result.compared[id(layer)] = replace(
                    known, absolute=absolute, relative=relative, agrees=False, note=note
                )
                return

    def _exchanged(self, first: _Pass) -> dict[int, Comparison]:
        """Returns the comparisons of layers whose tensors are exchanged."""
        groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        alone = {key for key, some in self._layers.items() if len(layers_of(some[0].layer)) == 1}
        for layer, handed_on in first.handed_on.items():
            if layer not in alone:
                continue
            key = first.inputs[layer], handed_on.shape
            groups.setdefault(key, []).append(layer)
        pairs = [[*itertools.combinations(group, 2)] for group in groups.values()]
        result: dict[int, Comparison] = {}
        # Groups are apart: what reads them hands on its own record.
        for several in itertools.zip_longest(*pairs):
            exchange: dict[int, _Read] = {}
            for one, two in filter(None, several):
                for layer, other in ((one, two), (two, one)):
                    after = first.handed_on[layer].after
                    exchange[layer] = replace(first.handed_on[other], after=after).value
            second = self._call(exchange)
            for reader, there in second.compared.items():
                here = first.compared[reader]
                if not math.isfinite(here.relative) or here.relative < _ROUNDING:
                    continue
                if there.relative * MARGIN > here.relative:
                    continue
                pair = self._before(reader, [*filter(None, several)])
                if pair is not None:
                    result |= self._guilty(pair, here, there)
        return result

    def _before(self, reader: int, pairs: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """Returns the last pair that is called before a reader."""
        order = [*self._layers]
        layer = next(key for key, some in self._layers.items() if reader in map(id, some))
        before = [pair for pair in pairs if order.index(pair[1]) < order.index(layer)]
        return max(before, key=lambda pair: order.index(pair[1]), default=None)

    def _guilty(
        self, pair: tuple[int, int], here: Comparison, there: Comparison
    ) -> dict[int, Comparison]:
        result = {}
        for layer, other in (pair, pair[::-1]):
            for one in self._layers[layer]:
                note = (
                    f"exchanged with {self._layers[other][0].path}: {here.layer} is "
                    f"{here.relative:.2g} off, and {there.relative:.2g} with each other's tensors"
                )
                result[id(one)] = Comparison(
                    one.module, one.path, here.absolute, here.relative, agrees=False, note=note
                )
        return result


def _is_closer(compared: Mapping[int, Comparison], known: Mapping[int, Comparison]) -> bool:
    """Whether a call of a layer is closer to a record than those before it, if there are any."""
    before = [known[one].relative for one in compared if one in known]
    return not before or min(one.relative for one in compared.values()) < min(before)


def _scaled(layer: Layer, value: NDArray[Any], tolerance: float) -> Comparison | None:
    """Returns the comparison of a table whose module scales its rows, as Gemma's; else None."""
    for array in arrangements(layer.record, value.shape):
        factor = float((value * array).sum() / ((value * value).sum() or 1))
        scaled = (value * factor).astype(value.dtype)
        comparison = compare(layer.module, layer.path, scaled, array, tolerance)
        if comparison.agrees:
            return comparison
    return None


def _is_nonlinear(function: Any) -> bool:
    return callable(function) and getattr(function, "__name__", "") != "linear"
