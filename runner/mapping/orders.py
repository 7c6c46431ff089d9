"""The order in which model and file define their modules, where it proves to be the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from runner.mapping.evidence import COUNTED
from runner.mapping.modules import Module
from runner.mapping.names import Token
from runner.mapping.pairing import Pairing

ORDER = "order"

# How many neighbours of each module are compared, how many of these comparisons must agree, and
# how many may not.
_NEIGHBOURS, _LEAST, _MOST = 8, 12, 1


class Orders:
    """The orders of both sides that agree for all modules whose pairs other evidence decides.

    Each side is ordered by its definition, or by the numbers in names that have the same words.
    """

    def __init__(self, pairing: Pairing, certain: Sequence[int]) -> None:
        mine = _orders(pairing.variables, definition=True)
        theirs = _orders(pairing.tensors, definition=pairing.ordered)
        rows = np.array(sorted(certain, key=lambda row: pairing.variables[row].position), int)
        columns = np.array([pairing.pairs[row] for row in rows], int)
        self._agreeing = [
            (one, two)
            for one, two in product(mine, theirs)
            if _agree(one, two, rows=rows, columns=columns)
        ]

    def verdict(self, first: tuple[int, int], second: tuple[int, int]) -> int:
        """Returns 1 where all orders speak for two pairs, -1 for their exchange, else 0."""
        signs = {
            int(_compare(one, first[0], second[0]) * _compare(two, first[1], second[1]))
            for one, two in self._agreeing
        } - {0}
        return signs.pop() if len(signs) == 1 else 0


_Order = tuple[NDArray[np.int_], NDArray[np.int_], list[int]]


def _orders(modules: Sequence[Module], *, definition: bool) -> list[_Order]:
    """Returns orders as (group, rank, words) of each module; one group is comparable."""
    skeletons: dict[tuple[Token, ...], int] = {}
    groups, numbers = [], []
    for module in modules:
        words = tuple(token for token in module.tokens if isinstance(token, str))
        numbers.append(tuple(token for token in module.tokens if isinstance(token, int)))
        # `norm` comes before `norm_1`, but `fc` may come behind `fc1`.
        counted = bool(COUNTED.search(module.name))
        kind: tuple[Token, ...] = (len(numbers[-1]) - counted, *words)
        groups.append(skeletons.setdefault(kind, len(skeletons)))
    ranks = {value: rank for rank, value in enumerate(sorted({*numbers}))}
    orders = [(np.array(groups), np.array([ranks[value] for value in numbers]), groups)]
    if definition:
        positions = np.array([module.position for module in modules])
        orders.append((np.zeros(len(modules), int), positions, groups))
    return orders


def _compare(order: _Order, first: int, second: int) -> int:
    group, rank, _ = order
    if group[first] != group[second]:
        return 0
    return int(np.sign(rank[first] - rank[second]))


def _agree(one: _Order, two: _Order, *, rows: NDArray[np.int_], columns: NDArray[np.int_]) -> bool:
    """Returns whether neighbours come in the same order on both sides.

    Where a file's order of definition is compared, each two kinds of neighbours count once: one
    order of blocks says nothing about the order inside them.
    """
    by_definition = not two[0].any()
    agree, differ = set[object](), set[object]()
    for distance in range(1, _NEIGHBOURS + 1):
        signs = [
            np.sign(rank[index[distance:]] - rank[index[:-distance]])
            * (group[index[distance:]] == group[index[:-distance]])
            for (group, rank, _), index in ((one, rows), (two, columns))
        ]
        for at, sign in enumerate((signs[0] * signs[1]).tolist()):
            first, second = two[2][columns[at]], two[2][columns[at + distance]]
            key = frozenset((first, second)) if by_definition else (at, distance)
            if sign:
                (agree if sign > 0 else differ).add(key)
    return len(agree) >= _LEAST and len(differ) <= (0 if by_definition else _MOST)
