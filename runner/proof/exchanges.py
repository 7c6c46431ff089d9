"""Tells which two layers have each other's tensors, where a layer behind them differs.

Not every layer has a record: parts of a fused projection, lower layers of a recurrent network, a
layer with tensors of several modules. If such layers have each other's tensors, the first layer
that differs is one that reads them. So tensors of layers that do not agree are exchanged, those
close to a reader that differs first, until the first one agrees.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.planning.comparison import Comparison
from runner.proof.local_comparison import MARGIN, LocalComparison

# How many exchanges are tried.
_MOST_TRIED = 600
# How much farther a layer behind a difference is than one before it.
_BEHIND = 4


def with_exchanges(
    compared: Sequence[Comparison],
    local: LocalComparison,
    layers: Mapping[str, Sequence[Any]],
    modules: Mapping[str, str],
) -> Iterator[Comparison]:
    """Yields comparisons; two layers whose exchange makes the first difference agree differ too.

    Args:
      compared: the comparisons.
      local: compares the layers.
      layers: path of a layer -> the variables that it holds itself, in the model's order.
      modules: path -> the module whose tensors a layer has.
    """
    first = next((one for one in compared if not one.agrees), None)
    pair = () if first is None or first.note else _exchanged(first, compared, local, layers)
    if first is not None and first.layer in pair[1:]:
        pair = pair[::-1]
    for one in compared:
        if one is first:
            for path, other in zip(pair, pair[::-1], strict=True):
                what = f"exchanged with {other}" if other != path else "has two tensors exchanged"
                note = f"{what}: once that is undone, {one.layer} agrees"
                numbers = one.absolute, one.relative
                yield Comparison(modules[path], path, *numbers, agrees=False, note=note)
        if one.layer not in pair:
            yield one


def _exchanged(
    first: Comparison,
    compared: Sequence[Comparison],
    local: LocalComparison,
    layers: Mapping[str, Sequence[Any]],
) -> tuple[str, ...]:
    """Returns the two layers by whose exchange the first difference vanishes; or one, or none.

    One has two variables with each other's values.
    """
    # A part of a fused module agrees with another part's record, too.
    agreeing = {one.layer for one in compared if one.agrees} - local.parts
    paths = [path for path in layers if path not in agreeing]
    differing = [paths.index(c.layer) for c in compared if not c.agrees and c.layer in paths]
    at = paths.index(first.layer) if first.layer in paths else len(paths)

    def distance(number: int, reader: int) -> int:
        # What is behind has hardly to do with it, but for layers that are defined in other order.
        return reader - number if number <= reader else _BEHIND * (number - reader)

    to_first = [distance(number, at) for number in range(len(paths))]
    to_any = [
        min(distance(number, reader) for reader in (at, *differing)) for number in range(len(paths))
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
    for one, two, way in itertools.islice(ways, _MOST_TRIED):
        _swap(way)
        try:
            there = local.relative(first, {one, two})
        finally:
            _swap(way[::-1])
        if there * MARGIN < first.relative and there <= local.tolerance:
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
