"""Which pairs of modules are certain, because every exchange costs evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from runner.mapping.assignment import Assignment
from runner.mapping.evidence import NUMBERS, Exchanges, Ties
from runner.mapping.orders import ORDER, Orders

ONLY = "only one fits"


@dataclass(frozen=True)
class Judgement:
    """Why a pair of modules is certain, or which other modules it could be.

    Attributes:
      reasons: the evidence that each exchange contradicts.
      candidates: indices of all modules of tensors that could be meant; empty for a certain pair.
      contradiction: the kinds of evidence that speak for an exchange.
    """

    reasons: tuple[str, ...]
    candidates: tuple[int, ...] = ()
    contradiction: tuple[str, ...] = ()


def judge(assignment: Assignment) -> tuple[Assignment, dict[int, Judgement]]:
    """Makes the exchanges that evidence speaks for and none against; then judges the pairs.

    Returns:
      The assignment with these exchanges, and index of a module of variables -> judgement.
    """
    orders: Orders | None = None
    for _ in range(_MOST_ROUNDS):
        verdicts = [*_verdicts(assignment, orders)]
        pairs, moved = dict(assignment.pairs), set[int | None]()
        for verdict in verdicts:
            rows = {verdict.row, verdict.taker} - {None}
            if not verdict.opposed or verdict.support or rows & moved:
                continue
            if verdict.taker is not None:
                pairs[verdict.taker] = pairs[verdict.row]
            if verdict.is_claim:
                del pairs[verdict.row]
            else:
                pairs[verdict.row] = verdict.other
            moved |= rows
        if not moved and orders is not None:
            break
        if not moved:
            doubtful = {*_doubts(verdicts)}
            orders = Orders(assignment, [row for row in pairs if row not in doubtful])
        assignment = replace(assignment, pairs=pairs)
    return assignment, _judgements(assignment, verdicts)


_MOST_ROUNDS = 6


@dataclass(frozen=True)
class _Verdict:
    """What speaks for a pair as it is and for the exchange with another one.

    Attributes:
      row: a module of variables.
      taker: the module with which it would exchange tensors; None if no other has `other`.
      other: the module of tensors that it would take.
      support: the kinds of evidence against the exchange.
      opposed: the kinds of evidence for it.
      is_claim: whether `taker` has no tensors, and would take the ones of `row`, which are `other`.
    """

    row: int
    taker: int | None
    other: int
    support: Sequence[str]
    opposed: Sequence[str]
    is_claim: bool = False


def _verdicts(assignment: Assignment, orders: Orders | None) -> Iterator[_Verdict]:
    """Yields the verdict on every exchange that shapes allow."""
    exchanges = Exchanges(assignment)
    takers = {column: row for row, column in assignment.pairs.items()}
    for row, other in assignment.fittings:
        column, taker = assignment.pairs.get(row), takers.get(other)
        if column is None and taker is not None:
            # A variable that has no tensor may be the one whose tensor another took.
            if _cost(assignment, row, other) <= _cost(assignment, taker, other):
                yield _Verdict(
                    taker, row, other, *exchanges.claims(taker, row, other), is_claim=True
                )
            continue
        if column is None or other == column:
            continue
        mine, cost = _cost(assignment, row, column), _cost(assignment, row, other)
        if taker is not None:
            if taker < row or (taker, column) not in assignment.fittings:
                continue
            mine += _cost(assignment, taker, other)
            cost += _cost(assignment, taker, column)
        if cost > mine:
            continue
        support, opposed = exchanges.evidence(row, taker, column, other)
        if orders is not None:
            order = (
                orders.place(row, column, other)
                if taker is None
                else orders.verdict((row, column), (taker, other))
            )
            if order:
                (support if order > 0 else opposed).append(ORDER)
        yield _Verdict(row, taker, other, support, opposed)


def _doubts(verdicts: Sequence[_Verdict]) -> dict[int, set[int]]:
    """Returns row -> the rows (as `~row`) and free columns with which exchanges are doubtful."""
    doubts: dict[int, set[int]] = defaultdict(set)
    for verdict in verdicts:
        if verdict.opposed or not verdict.support:
            if verdict.taker is None or verdict.is_claim:
                doubts[verdict.row].add(verdict.other)
            else:
                doubts[verdict.row].add(~verdict.taker)
                doubts[verdict.taker].add(~verdict.row)
    return doubts


def _judgements(assignment: Assignment, verdicts: Sequence[_Verdict]) -> dict[int, Judgement]:
    reasons: dict[int, dict[str, None]] = defaultdict(dict)
    against: dict[int, dict[str, None]] = defaultdict(dict)
    rivals = set[int]()
    for verdict in verdicts:
        for index in (verdict.row, verdict.taker):
            if index is not None:
                rivals.add(index)
                reasons[index] |= dict.fromkeys(verdict.support)
                against[index] |= dict.fromkeys(verdict.opposed)
    doubts, ties = _doubts(verdicts), Ties(assignment)
    for row in rivals - {*doubts}:
        # What speaks against all exchanges may be evidence for the other pairs alone.
        if reasons[row].keys().isdisjoint((NUMBERS, ORDER)) and not ties.bind(row):
            doubts[row] = set()
    candidates = _sets(assignment, doubts)
    return {
        row: Judgement(tuple(reasons[row]) or (ONLY,), candidates.get(row, ()), tuple(against[row]))
        for row in assignment.pairs
    }


def _cost(assignment: Assignment, row: int, column: int) -> int:
    fitting = assignment.fittings[row, column]
    return len(fitting.lacking) + fitting.extra


def _sets(assignment: Assignment, doubts: dict[int, set[int]]) -> dict[int, tuple[int, ...]]:
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
        columns = sorted(free | {assignment.pairs[row] for row in members})
        for row in members:
            candidates[row] = tuple(
                column for column in columns if (row, column) in assignment.fittings
            )
    return candidates
