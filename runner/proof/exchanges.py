"""Tells which two layers have each other's tensors, where a layer behind them differs.

Not every layer has a record: parts of a fused projection, lower layers of a recurrent network, a
layer with tensors of several modules. If such layers have each other's tensors, the first layer
that differs is one that reads them, or only the outputs do. So tensors of layers that do not agree
are exchanged, those close to a reader that differs first, until the first one agrees.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.planning.comparison import Comparison
from runner.proof.local_comparison import MARGIN

# How many exchanges are tried, for a layer and for outputs, which need the whole model each time.
_MOST_TRIED, _MOST_OF_OUTPUTS = 600, 120
# How much farther a layer behind a difference is than one before it.
_BEHIND = 4


@dataclass(frozen=True)
class Reader:
    """What differs first.

    Attributes:
      compared: a layer, or an output without `layer`.
      relative: the paths of layers whose values have changed -> how far it is from its record now.
      tolerance: how far it may be.
    """

    compared: Comparison
    relative: Callable[[Collection[str]], float]
    tolerance: float


def with_exchanges(
    compared: Sequence[Comparison],
    reader: Reader,
    layers: Mapping[str, Sequence[Any]],
    modules: Mapping[str, str],
    *,
    parts: Collection[str],
) -> Iterator[Comparison]:
    """Yields comparisons; two layers whose exchange makes the first difference agree differ too.

    Args:
      compared: the comparisons.
      reader: what differs first.
      layers: path of a layer -> the variables that it holds itself, in the model's order.
      modules: path -> the module whose tensors a layer has.
      parts: the paths of layers that agree with another part's record of a fused module, too.
    """
    first = reader.compared
    agreeing = {one.layer for one in compared if one.agrees} - {*parts}
    differing = [one.layer for one in compared if not one.agrees]
    some = {path: held for path, held in layers.items() if path not in agreeing}
    pair = () if first.note else _exchanged(reader, differing, some)
    if first.layer in pair[1:]:
        pair = pair[::-1]
    before = [*itertools.takewhile(lambda one: one is not first, compared)]
    yield from (one for one in before if one.layer not in pair)
    for path, other in zip(pair, pair[::-1], strict=True):
        what = f"exchanged with {other}" if other != path else "has two tensors exchanged"
        note = f"{what}: once that is undone, {first.layer or 'the output'} agrees"
        numbers = first.absolute, first.relative
        yield Comparison(modules[path], path, *numbers, agrees=False, note=note)
    yield from (one for one in compared[len(before) :] if one.layer not in pair)


def _exchanged(
    reader: Reader, differing: Sequence[str], layers: Mapping[str, Sequence[Any]]
) -> tuple[str, ...]:
    """Returns the two layers by whose exchange the first difference vanishes; or one, or none.

    One has two variables with each other's values.
    """
    paths, first = [*layers], reader.compared
    at = paths.index(first.layer) if first.layer in paths else len(paths)
    behind = [paths.index(path) for path in differing if path in paths]

    def distance(number: int, place: int) -> int:
        # What is behind has hardly to do with it, but for layers that are defined in other order.
        return place - number if number <= place else _BEHIND * (number - place)

    to_first = [distance(number, at) for number in range(len(paths))]
    to_any = [
        min(distance(number, place) for place in (at, *behind)) for number in range(len(paths))
    ]

    def rank(pair: tuple[int, int]) -> int:
        # One is close to the first difference, the other one to any.
        return min(to_first[one] + to_any[two] for one, two in (pair, pair[::-1]))

    pairs = sorted(itertools.combinations_with_replacement(range(len(paths)), 2), key=rank)
    ways = (
        (paths[one], paths[two], way)
        for one, two in pairs
        for way in _ways(layers[paths[one]], layers[paths[two]])
    )
    most = _MOST_TRIED if first.layer else _MOST_OF_OUTPUTS
    for one, two, way in itertools.islice(ways, most):
        _swap(way)
        try:
            there = reader.relative({one, two})
        finally:
            _swap(way[::-1])
        if there * MARGIN < first.relative and there <= reader.tolerance:
            return (one, two) if one != two else (one,)
    return ()


def _swap(pairs: Sequence[tuple[Any, Any]]) -> None:
    for one, two in pairs:
        value = one.numpy()
        one.assign(two.numpy())
        two.assign(value)


def _ways(one: Sequence[Any], two: Sequence[Any]) -> Iterator[list[tuple[Any, Any]]]:
    """Yields the exchanges between the variables of two layers: of all, then of any two."""
    is_same = one is two
    if not is_same and [v.shape for v in one] == [v.shape for v in two]:
        yield [*zip(one, two, strict=True)]
        if len(one) == 1:
            return
    pairs = itertools.combinations(one, 2) if is_same else itertools.product(one, two)
    yield from ([(a, b)] for a, b in pairs if a.shape == b.shape)
