"""Branches that are alike: a layer agrees with the records of another branch, and must not stay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from runner.mapping.candidates import Candidate
from runner.mapping.decision import AGREES
from runner.mapping.decisions import OUTPUTS, Decisions
from runner.mapping.layer_calls import ContradictedError, ModelCalls
from runner.mapping.trials import Trials

# How many beginnings of branches before a layer take the beginnings of others, with how many
# candidates beside theirs, and how often in vain.
_MOST_BRANCHES, _MOST_NEAR, _MOST_RECONSIDERED = 6, 6, 60


class Branches:
    """Decides again from the beginnings of branches.

    Attributes:
      forced: index of a call -> the only candidate that it may take now.
    """

    def __init__(
        self,
        decisions: Decisions,
        trials: Trials,
        calls: ModelCalls,
        outputs: Callable[[Any], float],
    ) -> None:
        """Takes the parts of a walk; `outputs` returns how far outputs are from the recorded."""
        self._decisions, self._trials, self._calls = decisions, trials, calls
        self._outputs = outputs
        self.forced: dict[int, Candidate] = {}
        self._reconsidered = 0

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

    def reconsider(self, reader: int) -> bool:
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
        before, held = self._decisions.copied(), {**self._calls.held}
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
