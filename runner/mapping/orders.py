"""The orders in which model and file define or number their modules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from runner.mapping.module_fitting import Array
from runner.mapping.modules import Module
from runner.mapping.names import STAGES, Token
from runner.mapping.pairing import Pairing

# The end of a name that Keras counted up, also in its files.
_COUNTED = re.compile(r"_\d+[/.]?(vars/)?$")
# How many neighbours of each module are compared, how many of these comparisons must agree, and
# how many may not.
_NEIGHBOURS, _LEAST, _MOST = 8, 12, 1
# Stand for words of stages and for the end of a name; other words are larger, numbers smaller.
_STAGE, _END = 10**15, 10**15 + 10


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
    """The order of both sides by the numbers of their names, and by their definition.

    Names with the same words are ordered by their numbers; a file may have no order of definition.
    """

    def __init__(self, pairing: Pairing) -> None:
        self._mine = _orders(pairing.variables, definition=True)
        self._theirs = _orders(pairing.tensors, definition=pairing.ordered)
        self._cells, self._other_cells = _cells(pairing.variables), _cells(pairing.tensors)
        self._agreeing: list[tuple[_Order, _Order]] = []

    def trust(self, pairing: Pairing, certain: Sequence[int]) -> None:
        """Trusts the orders that agree for all modules whose pairs other evidence decides."""
        rows = np.array(sorted(certain, key=lambda row: pairing.variables[row].position), int)
        columns = np.array([pairing.pairs[row] for row in rows], int)
        self._agreeing = [
            (one, two)
            for one, two in product(self._mine, self._theirs)
            if _agree(one, two, rows=rows, columns=columns)
        ]

    def by_names(self, rows: Array, takers: Array, columns: Array, others: Array) -> Array:
        """Returns 1 where the first differences of names speak for pairs, -1 against, else 0."""
        mine, is_stage, one = _signs(self._cells, rows, takers)
        theirs, is_other_stage, two = _signs(self._other_cells, columns, others)
        place = mine * self._mine[1].signs(rows, takers)
        other_place = np.zeros(len(rows), int)
        if is_defined := len(self._theirs) > 1:
            other_place = theirs * self._theirs[1].signs(columns, others)
        # Decoders are often numbered against their order: `up_3` may come first.
        agree = (place * (other_place if is_defined else 1) >= 0) | (one == two).all(1)
        # Words of stages mislead, unless both definitions say the same.
        agree &= ~(is_stage | is_other_stage) | (np.minimum(place, other_place) > 0)
        return np.where(agree, mine * theirs, 0)

    def trusted(self, rows: Array, takers: Array, columns: Array, others: Array) -> Array:
        """Returns 1 where all trusted orders speak for pairs, -1 for their exchange, else 0."""
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


def _cells(modules: Sequence[Module]) -> Array:
    """Returns the words and numbers of names as rows of numbers."""
    words: dict[Token, int] = {}
    rows = []
    for module in modules:
        row = [
            min(token, _STAGE - 1)
            if isinstance(token, int)
            else _STAGE + STAGES[token]
            if token in STAGES
            else words.setdefault(token, _END + 1 + len(words))
            for token in module.tokens
        ]
        # `norm` comes before `norm_1`, but `fc` may come behind `fc1`.
        at = len(row) - 1 if _COUNTED.search(module.name) else len(row)
        rows.append([*row[:at], _END, *row[at:]])
    cells = np.full((len(rows), max(map(len, rows), default=0) + 1), -1)
    for row, cell in zip(rows, cells, strict=True):
        cell[: len(row)] = row
    return cells


def _signs(cells: Array, first: Array, second: Array) -> tuple[Array, Array, Array]:
    """Returns how names compare by their first differences, whether by stages, and these."""
    one, two = cells[first], cells[second]
    at = np.arange(len(one)), (one != two).argmax(1)
    pairs = np.stack([one[at], two[at]], 1)
    is_stage = np.min(pairs, axis=1) >= _STAGE
    is_known = (np.max(pairs, axis=1) < _STAGE) | is_stage & (np.max(pairs, axis=1) < _END)
    return np.sign(pairs[:, 0] - pairs[:, 1]) * is_known, is_stage, pairs


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
