"""The pairing of tensors' modules to variables' modules that words and order support most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from runner.mapping.module_fitting import Fitting, Matrix, ModuleFitter
from runner.mapping.modules import Module

# Each module that is assigned outweighs all other evidence.
_ASSIGNED = 1000.0
# A tensor or a variable that stays alone in two modules that fit otherwise.
_ALONE = 20.0
_WORDS, _ORDER = 2.0, 1.0
_MOST_ROUNDS = 8
# The share of pairs that must have a word on both sides, of those that have it on one.
_TRUSTED = 0.6


@dataclass(frozen=True)
class Pairing:
    """Which module of tensors each module of variables takes.

    Attributes:
      variables: the model's modules.
      tensors: the file's modules.
      fitter: tells how a module of tensors fits one of variables.
      alone: variable module x tensor module -> how many of their leaves stay alone; infinite
        where they do not fit.
      pairs: variable module -> tensor module, by index.
      trusted: the words that both sides use of the same modules.
      ordered: whether the file has the order of its model's definition.
    """

    variables: Sequence[Module]
    tensors: Sequence[Module]
    fitter: ModuleFitter
    alone: Matrix
    pairs: dict[int, int]
    trusted: frozenset[str]
    ordered: bool

    def fitting(self, row: int, column: int) -> Fitting:
        """Returns how a module of tensors fits a module of variables; empty if it does not."""
        return self.fitter.fit(self.variables[row], self.tensors[column]) or Fitting({})


def assign(
    variables: Sequence[Module], tensors: Sequence[Module], fitter: ModuleFitter, *, ordered: bool
) -> Pairing:
    """Assigns modules by order and words, until the words that agree change nothing."""
    alone = fitter.alone(variables, tensors)
    score = np.where(np.isfinite(alone), _ASSIGNED - _ALONE * alone, 0.0)
    fixed = score + _ORDER * _order(variables, tensors)
    words = _Words(variables, tensors)
    total = fixed + _WORDS * words.agreement({})
    pairs: dict[int, int] = {}
    for _ in range(_MOST_ROUNDS):
        rows, columns = linear_sum_assignment(np.where(score > 0, total, 0.0), maximize=True)
        before = pairs
        pairs = {
            int(row): int(column)
            for row, column in zip(rows, columns, strict=True)
            if score[row, column] > 0
        }
        if pairs == before:
            break
        total = fixed + _WORDS * words.agreement(pairs)
    return Pairing(variables, tensors, fitter, alone, pairs, words.trusted(pairs), ordered)


class _Words:
    """How well the words of names agree."""

    def __init__(self, variables: Sequence[Module], tensors: Sequence[Module]) -> None:
        mine, theirs = ([module.words for module in side] for side in (variables, tensors))
        self._shared = sorted(frozenset().union(*mine) & frozenset().union(*theirs))
        self._mine = self._table(mine)
        self._theirs = self._table(theirs)
        self._rarity = np.zeros(len(self._shared))
        if self._shared:
            self._rarity = -np.log((self._mine.mean(0) + self._theirs.mean(0)) / 2)

    def _table(self, names: Sequence[frozenset[str]]) -> Matrix:
        rows = [[word in words for word in self._shared] for words in names]
        return np.array(rows, float).reshape(len(names), len(self._shared))

    def agreement(self, pairs: dict[int, int]) -> Matrix:
        """Returns how well modules agree by rare words, of which other pairs have both or none."""
        weight = self._rarity * self._trust(pairs)
        both = (self._mine * weight) @ self._theirs.T
        alone = (self._mine @ weight)[:, None] + (self._theirs @ weight)[None, :] - 2 * both
        agreement: Matrix = both - alone / 2
        return agreement

    def _trust(self, pairs: dict[int, int]) -> Matrix:
        if not pairs:
            return np.ones(len(self._shared))
        mine, theirs = self._mine[[*pairs.keys()]], self._theirs[[*pairs.values()]]
        trust: Matrix = (mine * theirs).sum(0) / np.maximum(np.maximum(mine, theirs).sum(0), 1)
        return trust

    def trusted(self, pairs: dict[int, int]) -> frozenset[str]:
        """Returns the words that most pairs have on both sides, where one has them."""
        trust = self._trust(pairs)
        return frozenset(
            word for word, share in zip(self._shared, trust, strict=True) if share >= _TRUSTED
        )


def _order(variables: Sequence[Module], tensors: Sequence[Module]) -> Matrix:
    """Returns how near the ranks of modules among those like them are, from -1 to 0."""
    total: Matrix = np.zeros((len(variables), len(tensors)))
    for by_words in (False, True):
        mine, theirs = _ranks(variables, by_words), _ranks(tensors, by_words)
        total -= np.abs(mine[:, None] - theirs[None, :]) / 2
    return total


def _ranks(modules: Sequence[Module], by_words: bool) -> Matrix:
    """Returns the rank of each module, from 0 to 1, among modules of equal sizes (and words)."""
    groups: dict[object, list[int]] = defaultdict(list)
    for index, module in enumerate(modules):
        words = tuple(token for token in module.tokens if isinstance(token, str))
        groups[module.sizes, words if by_words else ()].append(index)
    ranks = np.zeros(len(modules))
    for members in groups.values():
        ordered = sorted(members, key=lambda index: modules[index].position)
        ranks[ordered] = np.arange(len(ordered)) / max(len(ordered) - 1, 1)
    return ranks
