"""Which pairs of modules are certain, because every exchange costs evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from runner.mapping.evidence import Surroundings
from runner.mapping.module_fitting import Array
from runner.mapping.names import RELATIVE, Token
from runner.mapping.orders import Orders
from runner.mapping.pairing import Pairing

ONLY = "only one fits"
_MOST_ROUNDS = 12


@dataclass(frozen=True)
class Judgement:
    """Why a pair of modules is certain, or which other modules it could be.

    Attributes:
      reasons: the evidence that each exchange contradicts.
      candidates: indices of all modules of tensors that could be meant; empty for a certain pair.
    """

    reasons: tuple[str, ...]
    candidates: tuple[int, ...] = ()


def weigh_exchanges(pairing: Pairing) -> tuple[Pairing, dict[int, Judgement]]:
    """Makes the exchanges that only evidence speaks for, then judges the pairs.

    Returns:
      The pairing with these exchanges, and index of a module of variables -> judgement.
    """
    surroundings, orders = Surroundings(pairing.variables, pairing.tensors), Orders(pairing)
    exchanges, is_first = _weigh(pairing, surroundings, orders), True
    for _ in range(_MOST_ROUNDS):
        pairs = exchanges.made(pairing.pairs)
        if pairs != pairing.pairs:
            pairing = replace(pairing, pairs=pairs)
        elif is_first:
            is_first = False
            orders.trust(pairing, [row for row in pairs if row not in exchanges.doubtful_rows])
        else:
            break
        exchanges = _weigh(pairing, surroundings, orders)
    return pairing, exchanges.judgements(pairing)


@dataclass(frozen=True)
class _Exchanges:
    """The exchanges of tensors that shapes allow and that leave no more alone.

    Attributes:
      rows: modules of variables.
      takers: those with which they would exchange tensors; -1 where no module has `others`.
      others: the modules of tensors that they would take.
      evidence: kind -> positive where it speaks against an exchange, negative where for it.
    """

    rows: Array
    takers: Array
    others: Array
    evidence: Mapping[str, Array]

    def _says(self, sign: int) -> Array:
        """Returns whether a kind of evidence speaks against each exchange (1), or for it (-1)."""
        kinds = [np.zeros(len(self.rows)), *self.evidence.values()]
        return np.asarray(np.max(np.multiply(kinds, sign), axis=0) > 0)

    @cached_property
    def _doubtful(self) -> Array:
        return np.flatnonzero(self._says(-1) | ~self._says(1))

    @cached_property
    def doubtful_rows(self) -> set[int]:
        """The modules of variables of which no evidence decides on an exchange."""
        at = self._doubtful
        return {*self.rows[at].tolist(), *self.takers[at].tolist()} - {-1}

    def made(self, pairs: Mapping[int, int]) -> dict[int, int]:
        """Returns the pairs after those that only evidence speaks for, one for each module."""
        result, moved = dict(pairs), set[int]()
        at = np.flatnonzero(self._says(-1) & ~self._says(1))
        for row, taker, other in np.stack([self.rows, self.takers, self.others], 1)[at].tolist():
            if moved.isdisjoint((row, taker)):
                column = result.pop(row)
                if taker >= 0:
                    result[taker] = column
                result[row] = other
                moved |= {row, taker} - {-1}
        return result

    def judgements(self, pairing: Pairing) -> dict[int, Judgement]:
        """Returns index of a module of variables -> judgement on its pair."""
        rows, takers, others = (x[self._doubtful] for x in (self.rows, self.takers, self.others))
        # Doubtful exchanges in a row: each member of such a set may take each tensor of it.
        taken = takers >= 0
        graph = coo_array(
            (np.ones(taken.sum()), (rows[taken], takers[taken])),
            shape=(len(pairing.variables), len(pairing.variables)),
        )
        sets = connected_components(graph, directed=False)[1].tolist()
        columns: dict[int, set[int]] = defaultdict(set)
        for row, other in zip(rows.tolist(), others.tolist(), strict=True):
            columns[sets[row]] |= {pairing.pairs[row], other}
        reasons: dict[int, list[str]] = defaultdict(list)
        for kind, evidence in self.evidence.items():
            at = evidence > 0
            for row in {*self.rows[at].tolist(), *self.takers[at].tolist()}:
                reasons[row].append(kind)
        strangers = _strangers(pairing, self.doubtful_rows)
        result = {}
        for row, column in pairing.pairs.items():
            options = columns[sets[row]] if row in self.doubtful_rows else set[int]()
            if reasons[row] and column in strangers:
                options = options | {column}
            fits = tuple(at for at in sorted(options) if np.isfinite(pairing.alone[row, at]))
            result[row] = Judgement(tuple(reasons[row]) or (ONLY,), fits)
        return result


def _strangers(pairing: Pairing, doubtful: set[int]) -> set[int]:
    """Returns the modules of tensors that are surely taken, but no other one of those beside them.

    They may be of a part that the model lacks, such as another head.
    """
    beside: dict[tuple[Token, ...], set[int]] = defaultdict(set)
    for column, module in enumerate(pairing.tensors):
        for count in range(1, len(module.tokens)):
            beside[module.tokens[:count]].add(column)
    taken = {column for row, column in pairing.pairs.items() if row not in doubtful}
    around = {column: beside[pairing.tensors[column].tokens[:-1]] for column in taken}
    return {column for column, some in around.items() if some & taken == {column} != some}


def _weigh(pairing: Pairing, surroundings: Surroundings, orders: Orders) -> _Exchanges:
    """Weighs what the names say of all exchanges."""
    alone, pairs = pairing.alone, pairing.pairs
    columns_of = np.full(len(pairing.variables), -1)
    takers_of = np.full(len(pairing.tensors), -1)
    for row, column in pairs.items():
        columns_of[row], takers_of[column] = column, row
    rows, others = np.nonzero(np.isfinite(alone))
    columns, takers = columns_of[rows], takers_of[others]
    taken = takers >= 0
    now = alone[rows, columns] + np.where(taken, alone[takers, others], 0)
    then = alone[rows, others] + np.where(taken, alone[takers, columns], 0)
    allowed = (columns >= 0) & (columns != others) & (then <= now) & ~(taken & (takers < rows))
    rows, takers, columns, others, taken = (
        x[allowed] for x in (rows, takers, columns, others, taken)
    )

    def change(evidence: Array) -> Array:
        """Returns how much an exchange changes evidence for the worse."""
        before = evidence[rows, columns] + np.where(taken, evidence[takers, others], 0)
        after = evidence[rows, others] + np.where(taken, evidence[takers, columns], 0)
        return np.asarray(before - after)

    # `input_norm` and `post_attention_norm`: such words mislead.
    mine, theirs = (
        np.array([module.is_vector and bool(module.words & RELATIVE) for module in side], bool)
        for side in (pairing.variables, pairing.tensors)
    )
    misleads = mine[rows] | theirs[columns] | (taken & (mine[takers] | theirs[others]))
    evidence = {
        "words": ~misleads * change(pairing.words.shared(pairs)),
        "structure": taken * change(surroundings.linked(pairs)),
        "numbers": taken * orders.by_names(rows, takers, columns, others),
        "order": taken * orders.trusted(rows, takers, columns, others),
    }
    return _Exchanges(rows, takers, others, evidence)
