"""Evidence for a pair of modules, and for its exchange with another pair."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from runner.mapping.modules import Module
from runner.mapping.names import RELATIVE, STAGES, Token
from runner.mapping.pairing import Pairing

Cut = tuple[Token, ...]
# The end of a name that Keras counted up, also in its files.
COUNTED = re.compile(r"_\d+[/.]?(vars/)?$")
NUMBERS, WORDS, PLACES = "numbers", "words", "structure"


class Exchanges:
    """The evidence that an exchange of two modules costs."""

    def __init__(self, pairing: Pairing) -> None:
        self._pairing = pairing
        self._ends = [_Places(pairing, ends=ends) for ends in (False, True)]

    def evidence(
        self, row: int, taker: int | None, column: int, other: int
    ) -> tuple[list[str], list[str]]:
        """Returns the kinds of evidence for the pairs as they are, and for their exchange."""
        variables, tensors = self._pairing.variables, self._pairing.tensors
        first = variables[row], tensors[column]
        second = (None if taker is None else variables[taker]), tensors[other]
        support: list[str] = []
        opposed: list[str] = []
        for kind, verdict in (
            (NUMBERS, self._order(first, second)),
            (WORDS, _words(first, second, self._pairing.trusted)),
        ):
            if verdict:
                (support if verdict > 0 else opposed).append(kind)
        # Most exchanges are between blocks, whose numbers decide; what is in them takes longer.
        if opposed or not support:
            verdict = self._places(row, taker, column, other)
            if verdict:
                (support if verdict > 0 else opposed).append(PLACES)
        return support, opposed

    def _order(self, first: tuple[Module, Module], second: tuple[Module | None, Module]) -> int:
        """Compares the order of two modules, as numbers and words tell it."""
        if second[0] is None:
            return 0
        difference = _difference(first[0], second[0])
        if difference == (None, None):
            return 0  # Names that tell nothing apart.
        is_numbered = not any(isinstance(token, str) for token in difference)
        if is_numbered and difference == _difference(first[1], second[1]):
            return 1
        mine = _sign(first[0], second[0], is_ordered=True)
        theirs = _sign(first[1], second[1], is_ordered=self._pairing.ordered)
        if not mine or not theirs:
            return 0
        places = (first[0].position - second[0].position) * mine
        others = (first[1].position - second[1].position) * theirs
        if not self._pairing.ordered:
            others = abs(others)
        if places * others < 0:
            # Decoders are often numbered against their order: `up_3` may come first.
            return 0
        pairs = (first, (second[0], second[1]))
        if any(map(_is_relative, pairs)) and not all(map(_differ_by_number, *pairs)):
            # `input_norm` and `post_attention_norm`: the file's order has to say the same.
            place = first[1].position - second[1].position
            if not self._pairing.ordered or place * theirs < 0:
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

    def __init__(self, pairing: Pairing, *, ends: bool) -> None:
        self._pairs = pairing.pairs
        self._mine = _cuts(pairing.variables, ends)
        self._theirs = _cuts(pairing.tensors, ends)
        kinds: dict[Cut, Counter[tuple[int, ...]]] = defaultdict(Counter)
        self._size, self._size_of_theirs = Counter[Cut](), Counter[Cut]()
        self._common: Counter[tuple[Cut, Cut]] = Counter()
        for row, module in enumerate(pairing.variables):
            for cut in self._mine[row]:
                kinds[cut][module.sizes] += 1
        # Compared often: which modules begin so, by their sizes.
        self._kinds = {cut: frozenset(counts.items()) for cut, counts in kinds.items()}
        for row, column in pairing.pairs.items():
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
        support = opposed = False
        for cut in mine[shared:]:
            if cut not in self._links:
                continue
            kinds = self._kinds[cut]
            if any(self._kinds[rival] == kinds for rival in yours[shared:]):
                continue
            support |= not self._firm[cut].isdisjoint(theirs[shared_of_theirs:])
            opposed |= not self._links[cut].isdisjoint(others[shared_of_theirs:])
        return support, opposed


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
    for cells in zip_longest(one.tokens, two.tokens):
        if cells[0] != cells[1]:
            return cells
    return None, None


def _differ_by_number(one: Module, two: Module) -> bool:
    return all(isinstance(token, int) for token in _difference(one, two))


def _sign(one: Module, two: Module, *, is_ordered: bool) -> int:
    """Returns -1 if a module comes first by the first word or number that differs, 1 if second.

    Words decide only what the order of definition, if `is_ordered` says so, does not contradict.
    """
    first, second = _difference(one, two)
    if not isinstance(first, str) and not isinstance(second, str):
        # Keras numbers the second of a name: `norm`, `norm_1`. Without `_`, as in `fc` and `fc1`,
        # the one without a number may be the last as well.
        if None in (first, second) and not (COUNTED.search(one.name) or COUNTED.search(two.name)):
            return 0
        return -1 if (-1 if first is None else first) < (-1 if second is None else second) else 1
    one_rank, two_rank = STAGES.get(str(first), -1), STAGES.get(str(second), -1)
    if -1 in (one_rank, two_rank) or one_rank == two_rank:
        return 0
    sign = -1 if one_rank < two_rank else 1
    return 0 if is_ordered and sign * (one.position - two.position) < 0 else sign


def _is_relative(pair: Iterable[Module]) -> bool:
    return any(module.is_vector and module.words & RELATIVE for module in pair)


def _words(
    first: tuple[Module, Module], second: tuple[Module | None, Module], trusted: frozenset[str]
) -> int:
    """Compares the words that two pairs do not share."""
    mine, theirs = first[0].words, first[1].words
    yours = second[0].words if second[0] is not None else frozenset[str]()
    others = second[1].words
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
