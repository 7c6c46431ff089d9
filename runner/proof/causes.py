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
from operator import itemgetter
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.planning.comparison import NOT_FINITE, Comparison, difference
from runner.proof.feeding import Values, array_of
from runner.proof.local_comparison import LocalComparison

# A change that brings a reader ten times closer is right; below that, differences are roundings.
_MARGIN = 10.0
# Where no change is right, these are tried with another one, of these.
_FIRST, _SECOND = 10, 12
# How many more changes are tried once one makes a reader agree, though others still differ.
_MORE = 12
_EXCHANGED = "exchanged with"


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

    def cause(self, rest: Callable[[Change], float]) -> tuple[Change | None, list[str]]:
        """Returns the change that makes it agree, if there is one, and the layers that reach it.

        Args:
          rest: returns how much differs after a change; infinite if that contradicts what agrees.
        """
        if not self.suspects:
            return None, []
        half, gradients = self._gradients()
        reaching = [
            path for path, held in self.suspects.items() if any(id(v) in gradients for v in held)
        ]
        broken = [path for path in reaching if _has_nan(self.suspects[path])]
        if broken and self.compared.note == NOT_FINITE:
            return Change(dict.fromkeys(broken, "has a tensor with NaN"), ()), reaching
        likely = self._likely(half, gradients)
        # Then those of tensors that all reach it, for it may depend on them in any way.
        likely[self.most // 2 :] = sorted(
            likely[self.most // 2 :], key=lambda change: not change.layers.keys() <= {*reaching}
        )
        best, least, tried = None, math.inf, list[tuple[float, Change]]()
        for change in likely[: self.most]:
            most, median = self._under(change, reaching)
            tried.append((median, change))
            if self._is_right(most) and (differing := rest(change)) < least:
                best, least, end = change, differing, len(tried) + _MORE
            if best is not None and (not least or len(tried) >= end):
                break
        # Half of two changes brings most values closer, hardly the one that is farthest off.
        tried.sort(key=itemgetter(0))
        for _, change in tried[:_FIRST] if best is None and not self.compared.agrees else ():
            both = self._with_another(change, reaching)
            if both is not None and math.isfinite(rest(both)):
                return both, reaching
        return best, reaching

    def _with_another(self, change: Change, reaching: Collection[str]) -> Change | None:
        """Returns a change with another one behind which it agrees, if there is one."""
        before = change.before
        try:
            _assign(change.values)
            likely = self._likely(*self._gradients())[:_SECOND]
            right = (one for one in likely if self._is_right(self._under(one, reaching)[0]))
            other = next(right, None)
        finally:
            _assign(before)
        if other is None:
            return None
        # Its values are those behind the first change: without that, it may be no exchange.
        changed = {id(variable) for variable, _ in change.values}
        is_apart = changed.isdisjoint(id(variable) for variable, _ in other.values)
        if is_apart and self._is_right(self._under(other, reaching)[0]):
            return other
        return Change({**other.layers, **change.layers}, [*change.values, *other.values])

    def _likely(self, half: float, gradients: Mapping[int, NDArray[Any]]) -> list[Change]:
        """Returns changes of tensors that reach it, likely ones first."""

        def rank(change: Change) -> tuple[float, bool]:
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
        return sorted(changes, key=rank)

    def _is_right(self, there: float) -> bool:
        return there * _MARGIN < self.compared.relative and there <= self.tolerance

    def _under(self, change: Change, computing: Collection[str]) -> tuple[float, float]:
        """Returns how far it is from what was recorded after a change: the most and the median."""
        before = change.before
        try:
            _assign(change.values)
            pairs = [(array_of(value), recorded) for value, recorded in self.run(computing)]
        finally:
            _assign(before)
        most = max(difference(*pair)[0] for pair in pairs)
        if not math.isfinite(most):
            return math.inf, math.inf
        return most, max(float(np.median(np.abs(value - recorded))) for value, recorded in pairs)

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

    @property
    def before(self) -> Values:
        """The variables, with their present values."""
        return [(variable, array_of(variable.value)) for variable, _ in self.values]


@dataclass(frozen=True)
class Compared:
    """How a model compares with a reference, with its present values.

    Attributes:
      outputs: its outputs.
      layers: its layers.
      local: has compared the layers.
      readers: what differs or might be closer, in the order of the layers.
    """

    outputs: Sequence[Comparison]
    layers: Sequence[Comparison]
    local: LocalComparison
    readers: Sequence[Reader]

    def differing(self, guilty: Collection[str] = ()) -> list[tuple[str, str]]:
        """Returns the kind and name of what differs, in order, without layers that are guilty."""
        layers = (one for one in self.layers if one.layer not in guilty)
        some = {"layer": layers, "output": self.outputs}
        return [(kind, one.layer) for kind in some for one in some[kind] if not one.agrees]


class Causes:
    """The causes of differences: one after the other is undone, and the model compared again.

    Attributes:
      before: how the model compares before any cause is undone.
      undone: what differed, and the change that made it agree.
      unproven: the first layer that differs without a cause, and those that reach it and that no
        record shows to be right. Behind it, no cause is sought.
      contradiction: a layer of which checkpoint and reference contradict each other, or nothing.
    """

    def __init__(self, compare: Callable[[], Compared]) -> None:
        """Searches for them; the model has its own values afterwards.

        Args:
          compare: compares the model with its present values.
        """
        self.undone: list[tuple[Comparison, Change]] = []
        self.unproven: list[str] = []
        self.contradiction = ""
        self._compare = compare
        self._now = self.before = compare()
        self._values: list[tuple[Any, NDArray[Any]]] = []
        try:
            self._search()
        finally:
            _assign(self._values[::-1])

    def layers(self, module_of: Callable[[str], str]) -> list[Comparison]:
        """Returns the comparisons, with causes undone, and the guilty layers before what differed.

        Args:
          module_of: returns the module whose tensors a layer has.
        """
        layers = [*self._now.layers]
        named = set[str]()
        for of, change in self.undone:
            behind = f": once that is undone, {of.layer or 'the output'} agrees"
            paths = sorted(change.layers.keys() - named, key=lambda path: path != of.layer)
            named |= {*paths}
            guilty = [
                Comparison(
                    *(module_of(path), path, of.absolute, of.relative),
                    agrees=False,
                    note=change.layers[path] + (behind if change.values else ""),
                )
                for path in paths
            ]
            names = [one.layer for one in layers]
            at = names.index(of.layer) if of.layer in names else len(layers)
            before, after = (
                [one for one in some if one.layer not in paths]
                for some in (layers[:at], layers[at:])
            )
            layers = [*before, *guilty, *after]
        return layers

    def _search(self) -> None:
        seen = set[str]()
        while reader := self._next(seen):
            of = reader.compared
            change, reaching = reader.cause(self._rest)
            if change is not None:
                self._undo(change)
                self.undone.append((of, change))
            elif not of.agrees:
                if other := self._now.local.other_module(of):
                    what = f"{of.layer} computes what {other} did, with the tensors of {of.module}"
                    self.contradiction = what
                else:
                    self.unproven = [*filter(None, dict.fromkeys((of.layer, *reaching)))]
                return
            # What may still differ has its cause; the rest agrees, and is a reader no more.
            if change is None or of.agrees or not change.values:
                seen.add(of.layer)

    def _next(self, seen: Collection[str]) -> Reader | None:
        known = {*seen, *self.guilty}
        return next((one for one in self._now.readers if one.compared.layer not in known), None)

    @property
    def guilty(self) -> set[str]:
        """The paths of the layers whose tensors were changed."""
        return {path for _, change in self.undone for path in change.layers}

    def _rest(self, change: Change) -> float:
        """Returns how much differs after a change; infinite if that contradicts what agrees."""
        before = change.before
        try:
            _assign(change.values)
            now = self._compare()
        finally:
            _assign(before)
        differing = now.differing({*self.guilty, *change.layers})
        # Layers behind the first may differ because of that.
        least = [*differing[:1], *(one for one in differing if one[0] == "output")]
        return len(differing) if {*least} <= {*self._now.differing()} else math.inf

    def _undo(self, change: Change) -> None:
        self._values += change.before
        _assign(change.values)
        if change.values:
            self._now = self._compare()
        # By rules that exchange them, such a layer would now agree with the other one's module.
        local = self._now.local
        named = {one.layer for one in self._now.layers if local.has_named_tensors(one)}
        for path, what in change.layers.items():
            if path in named and what.startswith(_EXCHANGED):
                self.contradiction = (
                    f"{path} has its module's tensors by name, another module's by value"
                )


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
    layers = {one: f"{_EXCHANGED} {two}", two: f"{_EXCHANGED} {one}"}
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
