"""Finds the tensors that make a layer differ: two are exchanged, or one is transposed or negated.

The layer that differs need not hold them. Not every layer has a record: parts of a fused
projection, lower layers of a recurrent network, layers with tensors of several modules. And layers
side by side that read one input, such as query and key, agree with each other's record once their
tensors are exchanged. So changes of the tensors that reach a reader are tried, until it agrees. One
gradient puts likely changes first: it says how far each one brings the reader to its record, and is
exact where that depends linearly on the tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.planning.comparison import NOT_FINITE, Comparison, difference
from runner.proof.feeding import array_of

# A change that brings a reader ten times closer is right; below that, differences are roundings.
_MARGIN = 10.0

Values = Sequence[tuple[Any, NDArray[Any]]]


@dataclass(frozen=True)
class Reader:
    """What differs or might be closer, because of tensors that reach it.

    Attributes:
      compared: a layer, or an output without `layer`.
      run: the paths of layers that must compute, not hand on records -> values, and what was
        recorded of each.
      tolerance: how far it may be off.
      suspects: path of a layer -> the variables that it holds itself and that may be wrong.
      most: how many changes are tried.
    """

    compared: Comparison
    run: Callable[[Collection[str]], Values]
    tolerance: float
    suspects: Mapping[str, Sequence[Any]]
    most: int

    def cause(self) -> tuple[Change | None, list[str]]:
        """Returns the change that makes it agree, if there is one, and the layers that reach it."""
        if not self.suspects:
            return None, []
        half, gradients = self._gradients()
        reaching = [
            path for path, held in self.suspects.items() if any(id(v) in gradients for v in held)
        ]
        broken = [path for path in reaching if _has_nan(self.suspects[path])]
        if broken and self.compared.note == NOT_FINITE:
            return Change(dict.fromkeys(broken, "has a tensor with NaN"), ()), reaching

        def likely(change: Change) -> tuple[float, bool]:
            # Where it is linear in the tensors, the right change goes down by twice `half`. Without
            # numbers, what it holds itself comes first.
            slope = sum(
                np.vdot(gradients[id(variable)], np.asarray(value - array_of(variable.value), "f4"))
                for variable, value in change.values
                if id(variable) in gradients
            )
            rank = abs(slope / (2 * half) + 1) if half else math.inf
            is_elsewhere = self.compared.layer not in change.layers
            return float(rank) if math.isfinite(rank) else math.inf, is_elsewhere

        changes = (
            change
            for change in _changes(self.suspects)
            if any(id(variable) in gradients for variable, _ in change.values)
        )
        for change in sorted(changes, key=likely)[: self.most]:
            there = self._under(change, {*reaching})
            if there * _MARGIN < self.compared.relative and there <= self.tolerance:
                return change, reaching
        return None, reaching

    def _under(self, change: Change, computing: Collection[str]) -> float:
        """Returns how far it is from what was recorded after a change."""
        before = [(variable, array_of(variable.value)) for variable, _ in change.values]
        try:
            _assign(change.values)
            values = self.run(computing)
        finally:
            _assign(before)
        return max(difference(array_of(value), recorded)[0] for value, recorded in values)

    def _gradients(self) -> tuple[float, dict[int, NDArray[Any]]]:
        """Returns half the squared distance, and `id` of a variable -> gradient, if it matters."""
        variables = [variable for held in self.suspects.values() for variable in held]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for variable in variables:
                tape.watch(variable.value)
            distance = sum(map(_distance, self.run(self.suspects)))
        gradients = tape.gradient(distance, [variable.value for variable in variables])
        return float(distance), {
            id(variable): np.asarray(array_of(gradient), np.float32)
            for variable, gradient in zip(variables, gradients, strict=True)
            if gradient is not None
        }


@dataclass(frozen=True)
class Change:
    """Other values of variables, in which the cause of a difference is undone.

    Attributes:
      layers: the paths of the layers that hold the variables -> what is wrong with them.
      values: variables, with the values that they should have; none where nothing tells these.
    """

    layers: Mapping[str, str]
    values: Values


def with_causes(
    compared: Sequence[Comparison], readers: Iterable[Reader], module_of: Callable[[str], str]
) -> tuple[list[Comparison], list[str]]:
    """Returns comparisons, with the layers whose tensors make readers differ before these.

    Args:
      compared: the comparisons.
      readers: what differs or might be closer. Behind a difference without a cause, none is sought.
      module_of: returns the module whose tensors a layer has.

    Returns:
      The comparisons; and, if the first difference has no cause, the layers that reach it and that
      no record shows to be right.
    """
    layers, named = [*compared], set[str]()
    for reader in readers:
        of = reader.compared
        if of.layer and of not in layers:
            continue
        change, reaching = reader.cause()
        if change is None and not of.agrees:
            return layers, [] if named else reaching
        # Several may read them; the first one tells.
        if change is None or named & change.layers.keys():
            continue
        named |= change.layers.keys()
        undone = f": once that is undone, {of.layer or 'the output'} agrees"
        guilty = [
            Comparison(
                *(module_of(path), path, of.absolute, of.relative),
                agrees=False,
                note=change.layers[path] + (undone if change.values else ""),
            )
            for path in sorted(change.layers, key=lambda path: path != of.layer)
        ]
        at = layers.index(of) if of.layer else len(layers)
        before, after = (
            [one for one in some if one.layer not in change.layers]
            for some in (layers[:at], layers[at:])
        )
        layers = [*before, *guilty, *after]
    return layers, []


def _changes(layers: Mapping[str, Sequence[Any]]) -> Iterator[Change]:
    """Yields changes of all variables of two layers, of any two variables, and of one."""
    values = {id(v): array_of(v.value) for held in layers.values() for v in held}
    for (one, first), (two, second) in itertools.combinations(layers.items(), 2):
        if len(first) > 1 and [v.shape for v in first] == [v.shape for v in second]:
            pairs = [*zip(first, second, strict=True)]
            yield _exchange(one, two, [*pairs, *(pair[::-1] for pair in pairs)], values)
    holders = [(path, variable) for path, held in layers.items() for variable in held]
    for (one, first), (two, second) in itertools.combinations(holders, 2):
        if first.shape == second.shape:
            yield _exchange(one, two, [(first, second), (second, first)], values)
    for path, variable in holders:
        value = values[id(variable)]
        yield Change({path: "has a tensor with the wrong sign"}, [(variable, -value)])
        if value.ndim > 1 and value.shape[-1] == value.shape[-2]:
            turned = np.swapaxes(value, -1, -2)
            yield Change({path: "has a tensor with two axes exchanged"}, [(variable, turned)])


def _exchange(
    one: str, two: str, pairs: Sequence[tuple[Any, Any]], values: Mapping[int, NDArray[Any]]
) -> Change:
    layers = {one: f"exchanged with {two}", two: f"exchanged with {one}"}
    if one == two:
        layers = {one: "has two tensors exchanged"}
    return Change(layers, [(variable, values[id(other)]) for variable, other in pairs])


def _has_nan(variables: Iterable[Any]) -> bool:
    return any(np.isnan(array_of(variable.value)).any() for variable in variables)


def _assign(values: Values) -> None:
    for variable, value in values:
        variable.assign(value)


def _distance(pair: tuple[Any, NDArray[Any]]) -> Any:
    """Returns half the squared distance of a value from its record, of which the scale is one."""
    value, recorded = pair
    scale = float(np.abs(recorded).max(initial=0.0)) or 1.0
    rest = tf.cast(value, tf.float32) / scale - tf.constant(recorded / scale, tf.float32)
    return tf.reduce_sum(rest * rest) / 2
