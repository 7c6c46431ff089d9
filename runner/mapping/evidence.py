"""What the words of modules' names, and their places among the names, say for pairs of modules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence

import numpy as np

from runner.mapping.module_fitting import Array
from runner.mapping.modules import Module
from runner.mapping.names import Token

# The share of pairs that must have a word on both sides, of those that have it on one.
_TRUSTED = 0.6
# The share of modules in places of one kind that must be paired with modules in one kind's.
_LINKED = 0.8


class Words:
    """How well the words of names agree."""

    def __init__(self, variables: Sequence[Module], tensors: Sequence[Module]) -> None:
        mine, theirs = ([module.words for module in side] for side in (variables, tensors))
        shared = sorted(frozenset().union(*mine) & frozenset().union(*theirs))
        self._mine, self._theirs = _table(mine, shared), _table(theirs, shared)
        self._rarity = np.zeros(len(shared))
        if shared:
            self._rarity = -np.log((self._mine.mean(0) + self._theirs.mean(0)) / 2)

    def agreement(self, pairs: Mapping[int, int]) -> Array:
        """Returns how well modules agree by rare words, of which other pairs have both or none."""
        weight = self._rarity * self._trust(pairs)
        both = (self._mine * weight) @ self._theirs.T
        alone = (self._mine @ weight)[:, None] + (self._theirs @ weight)[None, :] - 2 * both
        agreement: Array = both - alone / 2
        return agreement

    def shared(self, pairs: Mapping[int, int]) -> Array:
        """Returns how many words modules share that most pairs have on both sides or on none."""
        shared: Array = (self._mine * (self._trust(pairs) >= _TRUSTED)) @ self._theirs.T
        return shared

    def _trust(self, pairs: Mapping[int, int]) -> Array:
        if not pairs:
            return np.ones(len(self._rarity))
        mine, theirs = self._mine[[*pairs.keys()]], self._theirs[[*pairs.values()]]
        trust: Array = (mine * theirs).sum(0) / np.maximum(np.maximum(mine, theirs).sum(0), 1)
        return trust


class Surroundings:
    """Which places among names correspond.

    A module is in the places of all beginnings and ends of its name. Surroundings that hold equal
    modules are of one kind, and could be exchanged as a whole: that one module is with its own
    block is no evidence for any of the blocks.
    """

    def __init__(self, variables: Sequence[Module], tensors: Sequence[Module]) -> None:
        mine, theirs = _kinds_of_places(variables), _kinds_of_places(tensors)
        self._mine, self._theirs = (
            _table(side, {*frozenset[Hashable]().union(*side)}) for side in (mine, theirs)
        )

    def linked(self, pairs: Mapping[int, int]) -> Array:
        """Returns in how many places modules are that correspond for most other pairs."""
        mine, theirs = self._mine[[*pairs.keys()]], self._theirs[[*pairs.values()]]
        size = np.maximum(mine.sum(0)[:, None], theirs.sum(0)[None, :])
        links = (size > 2) & (mine.T @ theirs >= _LINKED * (size - 1))
        linked: Array = self._mine @ links @ self._theirs.T
        return linked


def _kinds_of_places(modules: Sequence[Module]) -> list[frozenset[Hashable]]:
    """Returns the kinds of places, of several modules, that each module is in."""
    places = [
        [
            (end, module.tokens[-at:] if end else module.tokens[:at])
            for end in (False, True)
            for at in range(1, len(module.tokens) + 1)
        ]
        for module in modules
    ]
    sizes: dict[tuple[bool, tuple[Token, ...]], Counter[tuple[int, ...]]] = defaultdict(Counter)
    for module, some in zip(modules, places, strict=True):
        for place in some:
            sizes[place][module.sizes] += 1
    kinds = {
        place: (place[0], frozenset(counts.items()))
        for place, counts in sizes.items()
        if counts.total() > 1
    }
    return [frozenset(kinds[place] for place in some if place in kinds) for some in places]


def _table(modules: Sequence[Collection[Hashable]], known: Collection[Hashable]) -> Array:
    """Returns module x feature -> whether the module has it."""
    rows = [[feature in features for feature in known] for features in modules]
    return np.array(rows, float).reshape(len(modules), len(known))
