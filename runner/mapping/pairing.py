"""The pairing of the modules of tensors and variables that words and order support most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from runner.mapping.evidence import Words
from runner.mapping.module_fitting import Array, Fitting, ModuleFitter
from runner.mapping.modules import Module

# Each module that is assigned outweighs all other evidence.
_ASSIGNED = 1000.0
# A tensor or a variable that stays alone in two modules that fit otherwise.
_ALONE = 20.0
_WORDS, _ORDER = 2.0, 1.0
_MOST_ROUNDS = 8


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
      words: how well the words of both sides agree.
      ordered: whether the file has the order of its model's definition.
    """

    variables: Sequence[Module]
    tensors: Sequence[Module]
    fitter: ModuleFitter
    alone: Array
    pairs: dict[int, int]
    words: Words
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
    words = Words(variables, tensors)
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
    return Pairing(variables, tensors, fitter, alone, pairs, words, ordered)


def _order(variables: Sequence[Module], tensors: Sequence[Module]) -> Array:
    """Returns how near the ranks of modules among those like them are, from -1 to 0."""
    total: Array = np.zeros((len(variables), len(tensors)))
    for by_words in (False, True):
        mine, theirs = _ranks(variables, by_words), _ranks(tensors, by_words)
        total -= np.abs(mine[:, None] - theirs[None, :]) / 2
    return total


def _ranks(modules: Sequence[Module], by_words: bool) -> Array:
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
