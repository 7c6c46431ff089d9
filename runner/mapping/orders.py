"""The orders in which model and file define or number their modules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from runner.mapping.module_fitting import Array
from runner.mapping.modules import Module
from runner.mapping.names import Token
from runner.mapping.pairing import Pairing

# The end of a name that Keras counted up, also in its files.
_COUNTED = re.compile(r"_\d+[/.]?(vars/)?$")
# How many neighbours of each module are compared, how many of these comparisons must agree, and
# how many may not.
_NEIGHBOURS, _LEAST, _MOST = 8, 12, 1
# Stand for the first word of all in a name as numbers, and for the end of a name.
_FIRST_WORD, _END = 10**15, 10**15 - 1


class Numbers:
    """The order of modules by the first numbers in which their names differ."""

    def __init__(self, pairing: Pairing) -> None:
        self._ordered = pairing.ordered
        self._mine, self._theirs = _cells(pairing.variables), _cells(pairing.tensors)
        self._places, self._other_places = (
            np.array([module.position for module in side])
            for side in (pairing.variables, pairing.tensors)
        )

    def signs(self, rows: Array, takers: Array, columns: Array, others: Array) -> Array:
        """Returns 1 where numbers speak for pairs, -1 for their exchange, else 0."""
        (one, two), (three, four) = (
            _difference(self._mine, rows, takers),
            _difference(self._theirs, columns, others),
        )
        mine, theirs = _sign(one, two), _sign(three, four)
        # Decoders are often numbered against their order: `up_3` may come first.
        places = mine * np.sign(self._places[rows] - self._places[takers])
        if self._ordered:
            places *= theirs * np.sign(self._other_places[columns] - self._other_places[others])
        is_same = (one == three) & (two == four)
        return np.where(is_same | (places >= 0), mine * theirs, 0)


def _cells(modules: Sequence[Module]) -> Array:
    """Returns names as rows of numbers; words are large ones."""
    words: dict[Token, int] = {}
    rows = []
    for module in modules:
        row = [
            token if isinstance(token, int) else words.setdefault(token, _FIRST_WORD + len(words))
            for token in module.tokens
        ]
        # `norm` comes before `norm_1`, but `fc` may come behind `fc1`.
        at = len(row) - 1 if _COUNTED.search(module.name) else len(row)
        rows.append([*row[:at], _END, *row[at:]])
    cells = np.full((len(rows), max(map(len, rows), default=0) + 1), -1)
    for row, cell in zip(rows, cells, strict=True):
        cell[: len(row)] = row
    return cells


def _difference(cells: Array, first: Array, second: Array) -> tuple[Array, Array]:
    one, two = cells[first], cells[second]
    at = np.arange(len(one)), (one != two).argmax(1)
    return one[at], two[at]


def _sign(one: Array, two: Array) -> Array:
    sign: Array = np.sign(one - two) * (np.maximum(one, two) < _END)
    return sign


class _Order(NamedTuple):
    """An order of modules; those of one group are comparable."""

    groups: Array
    ranks: Array
    words: Array

    def signs(self, first: Array, second: Array) -> Array:
        """Returns -1 where a first module comes before a second one, 1 behind it, else 0."""
        is_comparable = self.groups[first] == self.groups[second]
        signs: Array = np.sign(self.ranks[first] - self.ranks[second]) * is_comparable
        return signs


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

    def signs(self, rows: Array, takers: Array, columns: Array, others: Array) -> Array:
        """Returns 1 where all orders speak for pairs, -1 for their exchange, else 0."""
        none = np.zeros(len(rows), int)
        signs = [
            none,
            *(a.signs(rows, takers) * b.signs(columns, others) for a, b in self._agreeing),
        ]
        return np.asarray(np.min(signs, axis=0) + np.max(signs, axis=0))


def _orders(modules: Sequence[Module], *, definition: bool) -> list[_Order]:
    skeletons: dict[tuple[Token, ...], int] = {}
    groups, numbers = [], []
    for module in modules:
        words = tuple(token for token in module.tokens if isinstance(token, str))
        numbers.append(tuple(token for token in module.tokens if isinstance(token, int)))
        counted = bool(_COUNTED.search(module.name))
        kind: tuple[Token, ...] = (len(numbers[-1]) - counted, *words)
        groups.append(skeletons.setdefault(kind, len(skeletons)))
    ranks = {value: rank for rank, value in enumerate(sorted({*numbers}))}
    by_words = np.array(groups, int)
    orders = [_Order(by_words, np.array([ranks[value] for value in numbers], int), by_words)]
    if definition:
        positions = np.array([module.position for module in modules], int)
        orders.append(_Order(np.zeros(len(modules), int), positions, by_words))
    return orders


def _agree(one: _Order, two: _Order, *, rows: Array, columns: Array) -> bool:
    """Returns whether neighbours come in the same order on both sides.

    Where a file's order of definition is compared, each two kinds of neighbours count once: one
    order of blocks says nothing about the order inside them.
    """
    by_definition = not two.groups.any()
    agree, differ = set[object](), set[object]()
    for distance in range(1, _NEIGHBOURS + 1):
        signs = one.signs(rows[distance:], rows[:-distance]) * two.signs(
            columns[distance:], columns[:-distance]
        )
        for at, sign in enumerate(signs.tolist()):
            words = two.words[columns[at]], two.words[columns[at + distance]]
            key = frozenset(map(int, words)) if by_definition else (at, distance)
            if sign:
                (agree if sign > 0 else differ).add(key)
    return len(agree) >= _LEAST and len(differ) <= (0 if by_definition else _MOST)
