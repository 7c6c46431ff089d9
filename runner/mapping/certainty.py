"""Which pairs of modules are certain, because every exchange costs evidence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from runner.mapping.assignment import Assignment, words_of
from runner.mapping.modules import Module
from runner.mapping.names import KINDS, RELATIVE, STAGES, Token

Cut = tuple[Token, ...]
ONLY, NUMBERS, WORDS, PLACES = "only one fits", "order of the numbers", "words", "structure"


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
    """Returns the judgement of each assigned module of variables, by index.

    Exchanges that only evidence speaks for are made first.
    """
    for _ in range(_MOST_ROUNDS):
        verdicts = [*_verdicts(assignment)]
        pairs, moved = dict(assignment.pairs), set[int]()
        for verdict in verdicts:
            rows = {verdict.row, verdict.taker}
            if verdict.opposed and not verdict.support and not rows & moved:
                if verdict.taker is not None:
                    pairs[verdict.taker] = pairs[verdict.row]
                    moved.add(verdict.taker)
                pairs[verdict.row] = verdict.other
                moved.add(verdict.row)
        if not moved:
            break
        assignment = replace(assignment, pairs=pairs)
    return assignment, _judgements(assignment, verdicts)


_MOST_ROUNDS = 4


@dataclass(frozen=True)
class _Verdict:
    """What speaks for a pair as it is and for the exchange with another one.

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


def _verdicts(assignment: Assignment) -> Iterator[_Verdict]:
    """Yields the verdict on every exchange that shapes allow."""
    exchanges = _Exchanges(assignment)
    takers = {column: row for row, column in assignment.pairs.items()}
    for row, other in assignment.fittings:
        column, taker = assignment.pairs.get(row), takers.get(other)
        if column is None or other == column:
            continue
        mine, cost = _cost(assignment, row, column), _cost(assignment, row, other)
        if taker is not None:
            if taker < row or (taker, column) not in assignment.fittings:
                continue
            mine += _cost(assignment, taker, other)
            cost += _cost(assignment, taker, column)
        if cost <= mine:
            yield _Verdict(row, taker, other, *exchanges.evidence(row, taker, column, other))


def _judgements(assignment: Assignment, verdicts: Sequence[_Verdict]) -> dict[int, Judgement]:
    reasons: dict[int, dict[str, None]] = defaultdict(dict)
    against: dict[int, dict[str, None]] = defaultdict(dict)
    doubts: dict[int, set[int]] = defaultdict(set)
    rivals = set[int]()
    for verdict in verdicts:
        for index in {verdict.row, verdict.taker} - {None}:
            rivals.add(index)
            reasons[index] |= dict.fromkeys(verdict.support)
            against[index] |= dict.fromkeys(verdict.opposed)
        if verdict.opposed or not verdict.support:
            doubts[verdict.row].add(verdict.other if verdict.taker is None else ~verdict.taker)
            if verdict.taker is not None:
                doubts[verdict.taker].add(~verdict.row)
    ties = _Ties(assignment)
    for row in rivals - {*doubts}:
        # What speaks against all exchanges may be evidence for the other pairs alone.
        if NUMBERS not in reasons[row] and not ties.bind(row):
            doubts[row] = set()
    candidates = _sets(assignment, doubts)
    return {
        row: Judgement(
            tuple(reasons[row]) or (ONLY,), candidates.get(row, ()), tuple(against[row])
        )
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


class _Exchanges:
    """The evidence that an exchange of two modules costs."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._ends = [_Places(assignment, ends=ends) for ends in (False, True)]

    def evidence(
        self, row: int, taker: int | None, column: int, other: int
    ) -> tuple[list[str], list[str]]:
        """Returns the kinds of evidence for the pairs as they are, and for their exchange."""
        variables, tensors = self._assignment.variables, self._assignment.tensors
        first = variables[row], tensors[column]
        second = (None if taker is None else variables[taker]), tensors[other]
        support, opposed = [], []
        for kind, verdict in (
            (NUMBERS, self._order(first, second)),
            (WORDS, _words(first, second, self._assignment.trusted)),
            (PLACES, self._places(row, taker, column, other)),
        ):
            if verdict:
                (support if verdict > 0 else opposed).append(kind)
        return support, opposed

    def _order(self, first: tuple[Module, Module], second: tuple[Module | None, Module]) -> int:
        """Compares the order of two modules, as numbers and words tell it."""
        if second[0] is None:
            return 0
        mine, theirs = _sign(first[0], second[0]), _sign(first[1], second[1])
        if not mine or not theirs:
            return 0
        numbered = all(map(_differ_by_number, first, (second[0], second[1])))
        if not numbered and (_is_relative(first) or _is_relative((second[0], second[1]))):
            # `input_norm` and `post_attention_norm`: the file's order has to say the same.
            place = first[1].position - second[1].position
            if not self._assignment.ordered or place * theirs < 0:
                return 0
        return mine * theirs

    def _places(self, row: int, taker: int | None, column: int, other: int) -> int:
        """Compares which beginnings and ends of names correspond, by what cannot be exchanged."""
        if taker is None:
            return 0
        support = opposed = False
        for places in self._ends:
            for one in (
                places.links(row, taker, column, other),
                places.links(taker, row, other, column),
            ):
                support |= one[0]
                opposed |= one[1]
        return support - opposed


# How many of the modules with one beginning must be paired with one beginning of the other side.
_LINKED = 0.7


class _Places:
    """The modules that share a beginning (or an end) of their names, and their pairs."""

    def __init__(self, assignment: Assignment, *, ends: bool) -> None:
        self._pairs = assignment.pairs
        self._mine = _cuts(assignment.variables, ends)
        self._theirs = _cuts(assignment.tensors, ends)
        kinds: dict[Cut, Counter[tuple[int, ...]]] = defaultdict(Counter)
        self._size, self._size_of_theirs = Counter[Cut](), Counter[Cut]()
        self._common: Counter[tuple[Cut, Cut]] = Counter()
        for row, module in enumerate(assignment.variables):
            for cut in self._mine[row]:
                kinds[cut][module.sizes] += 1
        # Compared often: which modules begin so, by their sizes.
        self._kinds = {cut: frozenset(counts.items()) for cut, counts in kinds.items()}
        for row, column in assignment.pairs.items():
            self._size.update(self._mine[row])
            self._size_of_theirs.update(self._theirs[column])
            for cut in self._mine[row]:
                self._common.update((cut, theirs) for theirs in self._theirs[column])

        self._links: dict[Cut, set[Cut]] = defaultdict(set)
        self._firm: dict[Cut, set[Cut]] = defaultdict(set)
        for (cut, end), common in self._common.items():
            size = max(self._size[cut], self._size_of_theirs[end])
            if size > 1 and self._size[cut] > 1:
                if common >= _LINKED * (size - 1):
                    self._links[cut].add(end)
                # A pair is no evidence for itself.
                if common - 1 >= _LINKED * (size - 1):
                    self._firm[cut].add(end)

    def links(self, row: int, taker: int, column: int, other: int) -> tuple[bool, bool]:
        """Returns whether what is around a module goes with its tensors, or with the others.

        Only beginnings that the two modules do not share count, and of these only such that could
        not be exchanged as a whole.
        """
        mine, yours = self._mine[row], self._mine[taker]
        theirs, others = self._theirs[column], self._theirs[other]
        shared, shared_of_theirs = _common_length(mine, yours), _common_length(theirs, others)
        rivals = {self._kinds[cut] for cut in yours[shared:]}
        support = opposed = False
        for cut in mine[shared:]:
            if cut not in self._links or self._kinds[cut] in rivals:
                continue
            support |= not self._firm[cut].isdisjoint(theirs[shared_of_theirs:])
            opposed |= not self._links[cut].isdisjoint(others[shared_of_theirs:])
        return support, opposed


class _Ties:
    """What ties a module to its tensors, whatever others do."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._mine = _both(assignment.variables)
        self._theirs = _both(assignment.tensors)
        self._sizes = Counter(cut for row in assignment.pairs for cut in self._mine[row])
        columns = assignment.pairs.values()
        self._sizes_of_theirs = Counter(cut for column in columns for cut in self._theirs[column])
        self._common = Counter(
            (cut, end)
            for row, column in assignment.pairs.items()
            for cut in self._mine[row]
            for end in self._theirs[column]
        )

    def bind(self, row: int) -> bool:
        """Returns whether words or the modules around it tie a module to its tensors.

        Where one side has no words but for kinds of layers, none contradict.
        """
        column = self._assignment.pairs[row]
        one, two = self._assignment.variables[row], self._assignment.tensors[column]
        mine, theirs = words_of(one) - KINDS, words_of(two) - KINDS
        if not mine or not theirs or mine & theirs & self._assignment.trusted:
            return True
        return any(
            common > 1 and common - 1 >= _LINKED * (size - 1)
            for cut in self._mine[row]
            for end in self._theirs[column]
            for common in [self._common[cut, end]]
            for size in [max(self._sizes[cut], self._sizes_of_theirs[end])]
        )


def _both(modules: Sequence[Module]) -> list[list[tuple[bool, Cut]]]:
    """Returns the beginnings and ends of each name that say more than a kind of layer."""
    return [
        [
            (ends, cut)
            for ends, cuts in ((False, starts), (True, stops))
            for cut in cuts
            if not KINDS.issuperset(cut)
        ]
        for starts, stops in zip(_cuts(modules, False), _cuts(modules, True), strict=True)
    ]


def _cuts(modules: Sequence[Module], ends: bool) -> list[list[Cut]]:
    """Returns the beginnings (or ends) of each module's name, shortest first."""
    return [
        [
            module.tokens[-count:] if ends else module.tokens[:count]
            for count in range(1, len(module.tokens) + 1)
        ]
        for module in modules
    ]


def _common_length(one: Sequence[Cut], two: Sequence[Cut]) -> int:
    count = 0
    while count < min(len(one), len(two)) and one[count] == two[count]:
        count += 1
    return count


def _difference(one: Module, two: Module) -> tuple[Token | None, Token | None]:
    """Returns the first words or numbers in which two names differ."""
    cells = zip_longest(one.tokens, two.tokens, fillvalue=None)
    return next(((a, b) for a, b in cells if a != b), (None, None))


def _differ_by_number(one: Module, two: Module) -> bool:
    return all(isinstance(token, int) for token in _difference(one, two))


def _sign(one: Module, two: Module) -> int:
    """Returns -1 if a module comes first by the first word or number that differs, 1 if second."""
    first, second = _difference(one, two)
    if isinstance(first, int | None) and isinstance(second, int | None):
        # Keras numbers the second of a name: `norm`, `norm_1`.
        return -1 if (-1 if first is None else first) < (-1 if second is None else second) else 1
    ranks = [STAGES.get(token) for token in (first, second)]
    if None in ranks or ranks[0] == ranks[1]:
        return 0
    return -1 if ranks[0] < ranks[1] else 1


def _is_relative(pair: Iterable[Module]) -> bool:
    return any(module.is_vector and words_of(module) & RELATIVE for module in pair)


def _words(
    first: tuple[Module, Module], second: tuple[Module | None, Module], trusted: frozenset[str]
) -> int:
    """Compares the words that two pairs do not share."""
    mine, theirs = words_of(first[0]), words_of(first[1])
    yours = words_of(second[0]) if second[0] is not None else frozenset[str]()
    others = words_of(second[1])
    if mine - yours == theirs - others and yours - mine == others - theirs:
        return 1 if mine != yours else 0
    if _is_relative(first) or (second[0] is not None and _is_relative((second[0], second[1]))):
        return 0
    one, two = (mine - yours) & trusted, (yours - mine) & trusted
    three, four = (theirs - others) & trusted, (others - theirs) & trusted
    support, opposed = len(one & three) + len(two & four), len(one & four) + len(two & three)
    if bool(support) == bool(opposed):
        return 0
    return 1 if support else -1
