"""Branches that are alike, such as experts: their layers agree with each other's records."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from runner.mapping.candidates import Candidate
from runner.mapping.decisions import Decisions
from runner.mapping.ways import Changes, Step, Ways

# How many branches before a layer take the beginnings of others.
_MOST_BRANCHES = 6
# How many branches are tried in all orders.
_MOST_ORDERED = 4
# Calls and their variables, the last one's behind those on which it depends.
_Branch: TypeAlias = tuple[tuple[int, str], ...]


class Branches:
    """Finds what branches may take from each other: all of their tensors, or the first ones."""

    def __init__(self, decisions: Decisions, ways: Ways) -> None:
        self._decisions, self._ways = decisions, ways

    def exchanges(self, reader: int) -> list[Step]:
        """Returns the exchanges of branches before a reader, of which each has its own steps."""
        return [partial(self._orders, branches) for branches in self._alike(reader)]

    def _alike(self, reader: int) -> list[list[_Branch]]:
        """Returns branches before a reader that compute alike, as experts do, the latest first.

        A branch has the variables on which its last call depends and the last one of another does
        not, such as a projection and the factor of its input.
        """
        depends = self._decisions.depends(reader)
        before = [at for at in sorted(self._decisions.made) if self._decisions.mask(at) & depends]
        read = {at: self._read(at) for at in before}
        pairs: list[tuple[_Branch, _Branch]] = []
        for one, two in itertools.combinations(reversed(before), 2):
            first, second = (
                tuple((at, name) for at in before for name in self._decisions.names(at, mask))
                for mask in (read[one] & ~read[two], read[two] & ~read[one])
            )
            kinds = [[self._kind(*part) for part in branch] for branch in (first, second)]
            ends = {(one, two), (two, one)}
            is_within = any(ends & {*itertools.product(*map(dict, pair))} for pair in pairs)
            if kinds[0] == kinds[1] and not is_within and not self._are_read(one, two):
                pairs.append((first, second))
        groups: list[list[_Branch]] = []
        for pair in pairs:
            group = next((group for group in groups if {*pair} & {*group}), None)
            if group is None:
                groups.append(group := [])
            group.extend(branch for branch in pair if branch not in group)
        return groups

    def _read(self, at: int) -> int:
        """Returns the variables that a layer reads, and those on which its inputs depend."""
        mask = self._decisions.mask(at)
        for one in (at, *self._decisions.again(at)):
            mask |= self._decisions.calls[one].depends
        return mask

    def _are_read(self, *calls: int) -> bool:
        """Whether a layer that reads all of some calls agrees, so that it has decided on them."""
        mask = self._decisions.mask(*calls)
        return any(
            decision.agrees and self._decisions.calls[at].depends & mask == mask
            for at, decision in self._decisions.made.items()
        )

    def _kind(self, at: int, name: str) -> tuple[object, ...]:
        """Returns what variables that may be exchanged have in common."""
        shapes = self._decisions.shapes(at)
        return type(self._decisions.calls[at].layer), *shapes.values(), shapes[name]

    def _orders(self, branches: Sequence[_Branch], before: Changes) -> Iterator[Changes]:
        """Yields what the layers of branches take in other orders: in all, or of two exchanged."""
        numbers = range(len(branches))
        now = {at: one.candidate for at, one in self._decisions.made.items()} | {**before}
        if len(branches) <= _MOST_ORDERED:
            orders: Iterable[tuple[int, ...]] = itertools.permutations(numbers)
        else:
            exchanges = itertools.combinations(numbers, 2)
            orders = (tuple({a: b, b: a}.get(n, n) for n in numbers) for a, b in exchanges)
        for order in orders:
            changes: dict[int, Candidate] = {}
            for number, source in enumerate(order):
                parts = zip(branches[number], branches[source], strict=True)
                for (at, name), (other, its) in parts if number != source else ():
                    known = changes.get(at, now[at])
                    taken = now[other].taken[its]
                    changes[at] = self._decisions.with_one(known, name, taken)
            # A call that stays as it is in part needs no candidate of its own.
            stay = {at for at, one in changes.items() if one.taken.items() & now[at].taken.items()}
            likes = {at: self._decisions.like(at, one) for at, one in changes.items()}
            options = {at: likes[at] or changes[at] for at in changes if likes[at] or at in stay}
            if options and len(options) == len(changes):
                yield {**before, **options}

    def beginnings(self, reader: int) -> Iterator[Changes]:
        """Yields other beginnings of branches before a reader, behind which all is to be decided.

        They are the last layers that agree, those with siblings first. All layers of a branch agree
        with the records of another branch that is like it. So one takes the beginning of another.
        """
        depends = self._decisions.depends(reader)
        agreeing = [
            at
            for at, decision in sorted(self._decisions.made.items(), reverse=True)
            if self._decisions.mask(at) & depends and decision.agrees
        ]
        siblings = {at: self._decisions.siblings(at) for at in agreeing}
        beside = [at for at, some in siblings.items() if some and not self._are_read(at, *some)]
        others = [at for at, some in siblings.items() if not some]
        for at in (*beside[:_MOST_BRANCHES], *others[:_MOST_BRANCHES]):
            made = self._decisions.made
            some = {at, *siblings[at]} & {*made}
            yield from self._ways.steps({one: made[one].candidate for one in some}, at)
