"""Branches that are alike, such as experts: their layers agree with each other's records."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from runner.mapping.candidates import Candidate
from runner.mapping.decision import AGREES
from runner.mapping.decisions import OUTPUTS
from runner.mapping.layer_calls import ContradictedError
from runner.mapping.measures import Measures

# How many beginnings of branches before a layer take the beginnings of others, with how many
# candidates beside theirs, and how often in vain.
_MOST_BRANCHES, _MOST_NEAR, _MOST_RECONSIDERED = 6, 6, 60
# How many branches are tried in all orders.
_MOST_ORDERED = 4
# Calls and their variables, the last one's behind those on which it depends.
_Branch: TypeAlias = tuple[tuple[int, str], ...]


class Branches:
    """Gives branches each other's tensors, or decides again from their beginnings.

    Attributes:
      forced: index of a call -> the only candidate that it may take now.
    """

    def __init__(self, measures: Measures) -> None:
        self._measures, self._decisions = measures, measures.decisions
        self._trials, self._calls, self._outputs = measures.trials, measures.calls, measures.outputs
        self.forced: dict[int, Candidate] = {}
        self._reconsidered = 0

    def rearrange(self, reader: int) -> bool:
        """Gives branches that are alike each other's tensors, until a reader agrees.

        Else decides again from the beginnings of branches.
        """
        made = self._decisions.made
        for branches in self._alike(reader):
            before = {at: made[at].candidate for branch in branches for at, _ in branch}
            nearest = math.inf
            while best := self._measures.nearest(reader, self._rearrangements(branches)):
                if best.relative >= nearest:
                    break
                self._move(best.changes)
                nearest = best.relative
                if nearest <= AGREES:
                    self._measures.renew()
                    return True
            if nearest < math.inf:
                self._move(before)
        return self._reconsider(reader)

    def _alike(self, reader: int) -> list[list[_Branch]]:
        """Returns branches before a reader that compute alike, as experts do, the latest first.

        A branch has the variables on which its last call depends and the last one of another does
        not, such as a projection and the factor of its input. A layer that reads two and agrees has
        decided on them.
        """
        agreeing = [
            self._decisions.calls[at].depends
            for at, decision in self._decisions.made.items()
            if decision.agrees
        ]
        before = [
            at
            for at in self._decisions.made
            if self._decisions.mask(at) & self._decisions.depends(reader)
        ]
        read = {at: self._read(at) for at in before}
        pairs: list[tuple[_Branch, _Branch]] = []
        for one, two in itertools.combinations(sorted(before, reverse=True), 2):
            first, second = (
                tuple(
                    (at, name) for at in sorted(before) for name in self._decisions.names(at, mask)
                )
                for mask in (read[one] & ~read[two], read[two] & ~read[one])
            )
            ends = {(one, two), (two, one)}
            is_within = any(ends & {*itertools.product(*map(dict, pair))} for pair in pairs)
            mask = self._decisions.mask(one) | self._decisions.mask(two)
            is_open = not is_within and all(depends & mask != mask for depends in agreeing)
            kinds = [[self._kind(*part) for part in branch] for branch in (first, second)]
            if is_open and kinds[0] == kinds[1]:
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

    def _kind(self, at: int, name: str) -> tuple[object, ...]:
        """Returns what variables that may be exchanged have in common."""
        shapes = self._decisions.shapes(at)
        return type(self._decisions.calls[at].layer), *shapes.values(), shapes[name]

    def _rearrangements(self, branches: Sequence[_Branch]) -> Iterator[dict[int, Candidate]]:
        """Yields what the layers of branches take in other orders: in all, or of two exchanged."""
        numbers = range(len(branches))
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
                    now = changes.get(at, self._decisions.made[at].candidate)
                    taken = self._decisions.made[other].candidate.taken[its]
                    changes[at] = self._decisions.with_one(now, name, taken)
            some = [(at, self._option(at, candidate)) for at, candidate in changes.items()]
            options = {at: option for at, option in some if option}
            if some and len(options) == len(some):
                yield options

    def _option(self, at: int, candidate: Candidate) -> Candidate | None:
        """Returns the candidate of a call that takes the same.

        A call that stays as it is in part needs none.
        """
        same = next(
            (option for option in self._decisions.all(at) if option.key == candidate.key), None
        )
        stays = candidate.taken.items() & self._decisions.made[at].candidate.taken.items()
        return same or (candidate if stays else None)

    def _move(self, changes: Mapping[int, Candidate]) -> None:
        """Moves each decision to the layer that takes its candidate."""
        made, path = self._decisions.made, self._decisions.path
        before = {made[at].candidate.expressions: made[at] for at in changes}
        moved = {at: before.get(new.expressions, made[at]) for at, new in changes.items()}
        paths = {path(decision.call): path(at) for at, decision in moved.items()}
        dirty = 0
        for at, decision in moved.items():
            by = paths.get(decision.by, decision.by)
            made[at] = replace(decision, call=at, candidate=changes[at], by=by)
            self._trials.load(changes[at])
            dirty |= self._decisions.mask(at)
        self._calls.forget(dirty)
        for at in sorted(changes):
            if not made[at].by:
                self._calls.held[at] = self._calls.call(at)

    def before(self, reader: int) -> list[int]:
        """Returns the last layers before a reader that agree, those with siblings first.

        A layer that reads all siblings and agrees has decided on them.
        """
        depends = self._decisions.depends(reader)
        agreeing = [
            at
            for at, decision in sorted(self._decisions.made.items(), reverse=True)
            if self._decisions.mask(at) & depends and decision.agrees
        ]
        read = [self._decisions.calls[at].depends for at in agreeing]
        masks = {
            at: sum(map(self._decisions.mask, (at, *some)))
            for at in agreeing
            if (some := self._decisions.beside(at))
        }
        beside = [at for at, mask in masks.items() if all(one & mask != mask for one in read)]
        others = [at for at in agreeing if at not in masks]
        return [*beside[:_MOST_BRANCHES], *others[:_MOST_BRANCHES]]

    def _reconsider(self, reader: int) -> bool:
        """Decides again from the beginnings of branches that are alike, until a reader agrees.

        All layers of a branch agree with the records of another branch that is like it. So one
        takes the beginning of another, and what depends on it is decided again.
        """
        if self.forced or self._reconsidered >= _MOST_RECONSIDERED:
            return False
        for at in self.before(reader):
            run = self._calls.call(at)
            candidate = self._decisions.made[at].candidate
            beside = [self._decisions.made.get(one) for one in self._decisions.beside(at)]
            likes = [self._decisions.like(at, one.candidate) for one in beside if one]
            near = [o for o in self._decisions.near(at) if self._trials.comparable(at, o)]
            for option in [*filter(None, likes), *near[:_MOST_NEAR]]:
                if option.key == candidate.key or self._reconsidered >= _MOST_RECONSIDERED:
                    continue
                if self._trials.attempt(at, run, option).relative > AGREES:
                    continue
                if self._agrees_after(reader, at, option):
                    self._reconsidered = 0
                    return True
            self._trials.load(candidate)
        return False

    def _agrees_after(self, reader: int, at: int, option: Candidate) -> bool:
        """Returns whether a reader agrees once a layer takes a candidate; if not, nothing changes.

        A layer beside it that has taken the candidate takes in exchange what this one had.
        """
        made = self._decisions.made
        candidate = made[at].candidate
        others = [one for one in self._decisions.beside(at) if one in made]
        others = [one for one in others if made[one].candidate.shares(option)]
        if not others and self._decisions.is_taken(option, {at}):
            return False
        self._reconsidered += 1
        like = [(one, self._decisions.like(one, candidate)) for one in others]
        changes = {at: option} | {one: other for one, other in like if other}
        before, held = self._decisions.snapshot(), {**self._calls.held}
        dirty = self.forget(changes)
        if self._agrees_with(reader, changes):
            return True
        for call, decision in before.made.items():
            now = self._decisions.made.get(call)
            if now is None or call in changes or now.candidate.key != decision.candidate.key:
                self._trials.load(decision.candidate)
        self._decisions.restore(before)
        self._calls.held |= held
        self._calls.forget(dirty)
        return False

    def _agrees_with(self, reader: int, changes: Mapping[int, Candidate]) -> bool:
        """Decides again up to a reader with changes; returns whether it agrees."""
        self.forced = dict(changes)
        try:
            reached = self._calls.reach(None if reader == OUTPUTS else reader)
            if reader == OUTPUTS:
                return self._outputs(reached) <= AGREES
            options = self._decisions.in_order(reader)
            tried = self._trials.until_one_agrees(reader, reached, options)
            return min((one.relative for one in tried), default=math.inf) <= AGREES
        except ContradictedError:
            return False
        finally:
            self.forced = {}

    def forget(self, changes: Iterable[int]) -> int:
        """Forgets the decisions on some layers and on all that depend on them.

        Returns the variables of these layers.
        """
        dirty = 0
        for at in changes:
            dirty |= self._decisions.mask(at)
        for at, call in enumerate(self._decisions.calls):
            if (call.depends | self._decisions.mask(at)) & dirty:
                self._decisions.made.pop(at, None)
        self._calls.forget(dirty)
        return dirty
