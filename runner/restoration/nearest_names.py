"""Finds the names nearest to another by edit distance, also among very many."""

from __future__ import annotations

import difflib
import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping

# As many names, those that share the rarest parts first, are compared letter by letter.
_COMPARED = 24
_PARTS = re.compile(r"[A-Za-z]+|\d+")


class NearestNames:
    """Ranks names by their edit distance; the names are indexed when it is first asked."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = names

    def find(self, name: str, count: int = 3) -> tuple[str, ...]:
        """Returns up to `count` names, the nearest first, names at equal distance in their order.

        Only names that share a part (a run of letters or digits) with `name` are compared where
        there are more than a few dozen names.
        """
        parts = self._index
        if len(self._sorted) <= _COMPARED:
            candidates: Iterable[str] = self._sorted
        else:
            votes: Counter[str] = Counter()
            own = {close for part in _parts(name) for close in self._close(part)}
            wanted = sorted(own, key=lambda part: len(parts[part]))
            for part in wanted:
                # Parts that nearly every name has decide nothing once there are candidates.
                same = parts[part]
                if len(same) <= len(self._sorted) // 4 or len(votes) < count:
                    votes.update(same)
            candidates = [each for each, _ in votes.most_common(_COMPARED)]
            candidates = candidates or self._sorted[:_COMPARED]
        return tuple(sorted(candidates, key=lambda each: (edit_distance(name, each), each))[:count])

    def _close(self, part: str) -> Iterable[str]:
        """Returns the part itself if a name has it, else the words nearest to it."""
        if part in self._index:
            return (part,)
        return difflib.get_close_matches(part, self._words, n=3) if part.isalpha() else ()

    @functools.cached_property
    def _words(self) -> list[str]:
        return [part for part in self._index if part.isalpha()]

    @functools.cached_property
    def _sorted(self) -> list[str]:
        return sorted(set(self._names))

    @functools.cached_property
    def _index(self) -> Mapping[str, list[str]]:
        index: dict[str, list[str]] = {}
        for name in self._sorted:
            for part in _parts(name):
                index.setdefault(part, []).append(name)
        return index


def nearest_names(name: str, names: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Returns up to `count` of the names, the nearest by edit distance first."""
    return NearestNames(names).find(name, count)


def edit_distance(one: str, other: str) -> int:
    """Returns the Levenshtein distance: how many letters to insert, delete or replace."""
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    one, other = one[start:], other[start:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        above, row[0] = row[0], i
        for j, counterpart in enumerate(other, 1):
            cost = above + (letter != counterpart)
            above = row[j]
            row[j] = min(cost, above + 1, row[j - 1] + 1)
    return row[-1]


def _parts(name: str) -> set[str]:
    return set(_PARTS.findall(name.lower()))
