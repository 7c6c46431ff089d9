"""Which pairs of modules are certain, because every exchange costs evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from runner.mapping.evidence import Exchanges
from runner.mapping.orders import ORDER, Orders
from runner.mapping.pairing import Pairing

ONLY = "only one fits"


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
    orders: Orders | None = None
    verdicts = [*_verdicts(pairing)]
    for _ in range(_MOST_ROUNDS):
        pairs = _exchanged(pairing.pairs, verdicts)
        if pairs != pairing.pairs:
            pairing = replace(pairing, pairs=pairs)
            verdicts = [*_verdicts(pairing)]
        elif orders is None:
            doubtful = {*_doubts(verdicts)}
            orders = Orders(pairing, [row for row in pairs if row not in doubtful])
        else:
            break
        if orders is not None:
            verdicts = [_with_order(verdict, pairing, orders) for verdict in verdicts]
    return pairing, _judgements(pairing, verdicts)


_MOST_ROUNDS = 6


@dataclass(frozen=True)
class _Verdict:
    """The evidence for a pair as it is, and for its exchange with another one.

    Attributes:
      row: a module of variables.
      taker: the module with which it would exchange tensors; None if no other has `other`.
      other: the module of tensors that it would take.
      support: the kinds of evidence against the exchange.
      opposed: the kinds of evidence for it.
    """

    row: int
    taker: int | None
    other: int
    support: Sequence[str]
    opposed: Sequence[str]


def _exchanged(pairs: Mapping[int, int], verdicts: Sequence[_Verdict]) -> dict[int, int]:
    """Returns the pairs after the exchanges that only evidence speaks for, one for each module."""
    result, moved = dict(pairs), set[int | None]()
    for verdict in verdicts:
        row, taker = verdict.row, verdict.taker
        if verdict.support or not verdict.opposed or not moved.isdisjoint((row, taker)):
            continue
        column = result.pop(row)
        if taker is not None:
            result[taker] = column
        result[row] = verdict.other
        moved |= {row, taker} - {None}
    return result


def _verdicts(pairing: Pairing) -> Iterator[_Verdict]:
    """Yields the verdict on every exchange that shapes allow and that leaves no more alone."""
    exchanges, alone = Exchanges(pairing), pairing.alone
    columns_of = np.full(len(pairing.variables), -1)
    takers_of = np.full(len(pairing.tensors), -1)
    for row, column in pairing.pairs.items():
        columns_of[row], takers_of[column] = column, row
    rows, others = np.nonzero(np.isfinite(alone))
    columns, takers = columns_of[rows], takers_of[others]
    is_taken = takers >= 0
    now = alone[rows, columns] + np.where(is_taken, alone[takers, others], 0)
    then = alone[rows, others] + np.where(is_taken, alone[takers, columns], 0)
    allowed = (columns >= 0) & (columns != others) & (then <= now) & ~(is_taken & (takers < rows))
    at = np.flatnonzero(allowed)
    for row, taker, column, other in np.stack([rows, takers, columns, others], 1)[at].tolist():
        rival = None if taker < 0 else taker
        yield _Verdict(row, rival, other, *exchanges.evidence(row, rival, column, other))


def _with_order(verdict: _Verdict, pairing: Pairing, orders: Orders) -> _Verdict:
    """Adds what the orders of definition say of an exchange."""
    if verdict.taker is None:
        return verdict
    pair = verdict.row, pairing.pairs[verdict.row]
    order = orders.verdict(pair, (verdict.taker, verdict.other))
    if order > 0:
        return replace(verdict, support=[*verdict.support, ORDER])
    return replace(verdict, opposed=[*verdict.opposed, ORDER]) if order else verdict


def _doubts(verdicts: Sequence[_Verdict]) -> dict[int, set[int]]:
    """Returns row -> the rows (as `~row`) and free columns with which exchanges are doubtful."""
    doubts: dict[int, set[int]] = defaultdict(set)
    for verdict in verdicts:
        if verdict.opposed or not verdict.support:
            if verdict.taker is None:
                doubts[verdict.row].add(verdict.other)
            else:
                doubts[verdict.row].add(~verdict.taker)
                doubts[verdict.taker].add(~verdict.row)
    return doubts


def _judgements(pairing: Pairing, verdicts: Sequence[_Verdict]) -> dict[int, Judgement]:
    reasons: dict[int, dict[str, None]] = defaultdict(dict)
    for verdict in verdicts:
        for index in (verdict.row, verdict.taker):
            if index is not None:
                reasons[index] |= dict.fromkeys(verdict.support)
    candidates = _sets(pairing, _doubts(verdicts))
    return {
        row: Judgement(tuple(reasons[row]) or (ONLY,), candidates.get(row, ()))
        for row in pairing.pairs
    }


def _sets(pairing: Pairing, doubts: dict[int, set[int]]) -> dict[int, tuple[int, ...]]:
    """Joins the doubtful exchanges into sets; each member may be each tensor of its set."""
    candidates: dict[int, tuple[int, ...]] = {}
    pending = {*doubts}
    while pending:
        members, front = set[int](), [pending.pop()]
        free: set[int] = set()
        while front:
            row = front.pop()
            members.add(row)
            free |= {other for other in doubts[row] if other >= 0}
            front += [~other for other in doubts[row] if other < 0 and ~other not in members]
        pending -= members
        columns = sorted(free | {pairing.pairs[row] for row in members})
        for row in members:
            fits = np.isfinite(pairing.alone[row, columns])
            candidates[row] = tuple(np.array(columns)[fits].tolist())
    return candidates
