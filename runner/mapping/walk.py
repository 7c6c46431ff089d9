"""Decides which tensors are which variables, by what the modules of the source computed.

A model is called once, and each call of a layer that reads undecided variables is held until a
module's tensors make its output what that module computed. What is handed on is the recorded
output, so that roundings do not add up. Layers side by side, such as query and key, all agree with
their own records: what reads them decides, and a clear margin to every exchange is needed. Where
nothing agrees, the undecided layers before it are tried in other ways, and what does not depend on
them is not computed again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from runner.mapping.branches import Branches
from runner.mapping.candidates import Candidate
from runner.mapping.decision import AGREES, MARGIN, NEAR, Decision, is_clear
from runner.mapping.decisions import OUTPUTS, Decisions
from runner.mapping.layer_calls import ContradictedError, ModelCalls, PauseError
from runner.mapping.measures import MOST_OF_KIND, Measured, Measures
from runner.mapping.source import RecordedCheckpoint
from runner.mapping.trials import Trials, Tried
from runner.mapping.ways import Changes, Ways

# How often the layers before a call may be searched in vain.
_MOST_SEARCHES = 2
# How near a reader must be that decides on layers whose own records say otherwise.
_NEARER = 0.01
# How many exchanges of layers that no record speaks for are tried.
_MOST_EXCHANGES = 4 * MOST_OF_KIND
# To how many changes that are measured it comes to decide again behind one.
_COST_OF_DECIDING = 16


class Walk:
    """One walk through a model; see `run`."""

    def __init__(
        self,
        model: Any,
        forward: Callable[[], Any],
        source: RecordedCheckpoint,
        *,
        decisions: Decisions,
        trials: Trials,
        outputs: Callable[[Any], float],
    ) -> None:
        """Prepares a walk.

        Args:
          model: the Keras model.
          forward: calls it with the inputs of the reference.
          source: the checkpoint's tensors and the records.
          decisions: takes what is decided.
          trials: evaluates candidates.
          outputs: returns how far outputs are from the recorded ones.
        """
        self._source, self._decisions, self._trials = source, decisions, trials
        self._calls = ModelCalls(model, forward, decisions, self._solve)
        self._measures = Measures(decisions, trials, self._calls, outputs)
        self._ways = Ways(decisions, trials, self._calls)
        self._branches = Branches(decisions, self._ways)
        self._forced: Changes = {}

    def run(self) -> None:
        """Decides on all variables."""
        self._calls.reach()
        outputs = self._measures.of(OUTPUTS, {})
        if not outputs.agrees:
            self._search(OUTPUTS, [], outputs.relative)
        self._settle(OUTPUTS)
        self._calls.clear()

    def _solve(self, at: int, run: Callable[[], Any]) -> Any:
        """Decides on the variables of a call, or pauses the model to try other ways before it."""
        forced = self._forced.get(at)
        options = [forced] if forced else self._decisions.in_order(at)
        if not options:
            return run()
        self._calls.held[at] = run
        calls = self._decisions.calls
        if any(call.variables for call in calls[at + 1 : calls[at].end]):
            self._decide(at, Tried(options[0], math.inf))
            return run()
        tried = self._trials.until_one_agrees(at, run, options)
        if tried and tried[0].agrees:
            self._decide(at, tried[0])
        elif self._forced:
            raise ContradictedError
        else:
            here = tried[0].relative if tried else math.inf
            raise PauseError(lambda: self._search(at, tried, here))
        if self._decisions.is_reader(at):
            raise PauseError(lambda: self._settle(at))
        return self._calls.output(at, run)

    def _search(self, reader: int, tried: Sequence[Tried], here: float) -> None:
        """Changes what is before a reader until it agrees, or decides on it as it is.

        Before that, the reader is as far from its record as `here` says.
        """
        if reader != OUTPUTS and self._decide_elsewhere(reader):
            return
        best = self._nearest(reader, here)
        if best is not None:
            self._measures.adopt(best.changes)
        if reader == OUTPUTS:
            return
        if best is None:
            self._fall_back(reader, tried)
        elif best.tried:
            self._calls.held[reader] = self._calls.call(reader)
            self._decide(reader, best.tried)
        if self._decisions.is_reader(reader):
            self._settle(reader)

    def _nearest(self, reader: int, here: float) -> Measured | None:
        """Returns changes after which a reader agrees, or is clearly nearer, if there are any."""
        best = Measured(math.inf, {})
        for one in self._changes(reader):
            best = min(best, one, key=lambda one: one.relative)
            if best.agrees:
                return best
        is_near = best.relative < NEAR and best.relative * MARGIN < here and best.changes
        return best if is_near else None

    def _changes(self, reader: int) -> Iterator[Measured]:
        """Yields the nearest changes of a kind before a reader, one kind after another."""
        options = [] if reader == OUTPUTS else self._decisions.in_order(reader)
        # A module without a record contradicts nothing that has agreed before.
        is_silent = any(not self._source.has_record(option.modules) for option in options)
        groups = [
            group
            for group in self._decisions.groups(self._decisions.depends(reader))
            if min(decision.searched for decision in group) < _MOST_SEARCHES
            and not (is_silent and all(decision.is_supported for decision in group))
        ]
        if groups:
            yield self._measures.nearest(reader, self._ways.assignments(groups))
            yield self._measures.step_by_step(reader, *self._ways.in_steps(groups, reader))
            for decision in itertools.chain.from_iterable(groups):
                decision.searched += 1
        if groups or not is_silent:
            exchanges = self._branches.exchanges(reader)
            yield self._measures.step_by_step(reader, {}, exchanges)
            for changes in self._branches.beginnings(reader):
                yield self._decided_again(reader, changes)

    def _decided_again(self, reader: int, changes: Changes) -> Measured:
        """Decides again behind changes; if the reader does not agree then, nothing changes."""
        nothing = Measured(math.inf, {})
        if self._measures.left <= 0:
            return nothing
        left = self._measures.left = self._measures.left - _COST_OF_DECIDING
        refuted = {*self._decisions.refuted}
        made = self._decisions.made
        self._forced = {at: one for at, one in changes.items() if one.key != made[at].candidate.key}
        saved = self._calls.saved()
        self._forget(self._forced)
        try:
            self._calls.reach(None if reader == OUTPUTS else reader)
            measured = self._measures.of(reader, {})
        except ContradictedError:
            measured = nothing
        self._forced = {}
        if not measured.agrees:
            self._measures.left, self._decisions.refuted = left, refuted
            self._calls.restore(saved)
            for decision in self._decisions.made.values():
                self._trials.load(decision.candidate)
        return measured

    def _forget(self, calls: Collection[int]) -> None:
        """Forgets the decisions on some calls and on all that depend on them."""
        dirty = self._decisions.mask(*calls)
        for at, call in enumerate(self._decisions.calls):
            if (call.depends | self._decisions.mask(at)) & dirty:
                self._decisions.made.pop(at, None)
        self._calls.forget(calls)

    def _decide_elsewhere(self, at: int) -> bool:
        """Decides by a later call of a layer: the recorded one may be first in the source alone."""
        for other in self._decisions.again(at):
            run = self._calls.reach(other, blind=self._decisions.mask(at))
            tried = self._trials.until_one_agrees(other, run, self._decisions.in_order(at))
            if tried and tried[0].agrees:
                self._calls.held[at] = run
                self._decide(at, tried[0], place=other)
                # The record is not of this call.
                decision = self._decisions.made[at]
                decision.handed_on = None
                if not decision.by:
                    decision.relative, decision.record = math.inf, ""
                return True
        return False

    def _decide(self, at: int, tried: Tried, place: int | None = None) -> None:
        """Takes a candidate; `place` is the call that was tried if it is another of the layer."""
        candidate = tried.candidate
        is_recorded = bool(tried.record)
        decision = Decision(at, candidate, tried.relative, tried.record, handed_on=tried.expected)
        self._decisions.made[at] = decision
        if is_recorded:
            self._compare_next(at, decision, at if place is None else place)
        self._trials.load(candidate)
        siblings = self._decisions.siblings(at)
        rivals = self._ways.rivals(at, candidate)
        is_near = decision.relative < NEAR and is_clear(decision.next, decision.relative)
        is_whole = not self._decisions.apart(at)
        if is_recorded and not siblings and not rivals and is_near and is_whole:
            decision.by = self._decisions.path(at)
            del self._calls.held[at]

    def _compare_next(self, at: int, decision: Decision, place: int) -> None:
        """Compares the closest other candidate with the record that decided."""
        run, candidate = self._calls.held[at], decision.candidate
        for other in self._decisions.in_order(at):
            if other.key == candidate.key or not self._trials.comparable(place, other):
                continue
            if other.cut != candidate.cut or self._trials.is_equal(candidate, other):
                continue
            expected = decision.handed_on
            decision.next = (
                self._trials.difference(run, other, expected())
                if expected
                else self._trials.attempt(place, run, other, behind=True).relative
            )
            decision.close = None if is_clear(decision.next, decision.relative) else other
            return

    def _fall_back(self, at: int, tried: Sequence[Tried]) -> None:
        """Decides on a call of which no candidate agrees with a record."""
        # The record of a block is not the record of its parameters.
        ranked = [one for one in tried if self._source.has_record(one.candidate.modules)]
        if ranked:
            best, rivals = ranked[0], ranked[1:]
            is_near = best.relative < NEAR and all(o.relative > 3 * best.relative for o in rivals)
            # What names propose counts as recorded, undecided, so that what follows can be decided.
            if is_near or (best.candidate.is_named and best.relative < 1):
                self._decide(at, best)
                depends = self._decisions.calls[at].depends | self._decisions.mask(at)
                for decision in self._decisions.open(depends):
                    decision.is_hidden = True
                return

        def rank(option: Candidate) -> tuple[bool, ...]:
            recorded = {self._source.has_record([module]) for module in option.modules}
            # Parameters without a record beside tensors with one are hardly of one layer.
            return len(recorded) > 1, not option.is_named, recorded == {True}

        self._decide(at, Tried(min(self._decisions.in_order(at), key=rank), math.inf))

    def _compared(
        self, reader: int, group: Sequence[Decision], measured: dict[object, float]
    ) -> tuple[float, float, float, set[int], set[int]] | None:
        """Compares layers side by side with their exchanges; None once it has adopted one.

        Returns:
          How far the reader is with what they hand on, with what they compute, and with the closest
          exchange; the calls that took part in exchanges, and those of which one is as near.
        """
        now = {decision.call: decision.candidate for decision in group}
        handed_on = self._measures.of(reader, {}).relative
        # A record that is handed on hides what is before it.
        current = self._measures.of(reader, now).relative
        tested, unclear, closest = set[int](), set[int](), math.inf
        for changes in self._ways.exchanges(group, reader):
            is_within = {*changes} <= {*now}
            if not is_within and unclear >= {*changes} & {*now}:
                continue
            key = tuple(sorted((at, candidate.key) for at, candidate in changes.items()))
            if key not in measured and len(measured) < _MOST_EXCHANGES:
                measured[key] = self._measures.of(reader, {**now, **changes}).relative
            # What is not tried is not excluded.
            there = measured.get(key, current)
            if there * MARGIN < current and is_within:
                self._measures.adopt(changes)
                return None
            closest = min(closest, there)
            tested |= {*changes}
            if not is_clear(there, current):
                unclear |= {*changes} - self._decisions.joined(group, changes)
        return handed_on, current, closest, tested, unclear

    def _settle(self, reader: int) -> None:
        """Decides on layers before a reader that agrees, by exchanges that would change it."""
        depends = self._decisions.depends(reader)
        measured: dict[object, float] = {}
        for group in [*self._decisions.groups(depends)]:
            while (compared := self._compared(reader, group, measured)) is None:
                measured.clear()
            handed_on, current, closest, tested, unclear = compared
            for decision in group:
                decision.next = min(decision.next, closest)
                decision.is_supported |= handed_on <= AGREES
                # Behind a layer that was only near, agreement proves nothing; a difference does.
                agreement = current if decision.is_unrecorded else handed_on
                known = not decision.is_hidden and agreement <= AGREES
                # Where its own record says otherwise, it has to be nearer: not all is tried.
                modules = decision.candidate.modules
                is_refuted = decision.is_unrecorded and self._source.has_record(modules)
                near = _NEARER if is_refuted else NEAR
                seen = known or (decision.call in tested and current < near)
                # One that may be another layer agrees with other parameters then.
                is_known = reader == OUTPUTS or bool(self._decisions.made[reader].by)
                seen &= is_known or not decision.is_unrecorded
                if seen and decision.call not in unclear:
                    decision.seen |= depends
                if not self._decisions.mask(decision.call) & ~decision.seen:
                    decision.by = self._decisions.path(reader)
                    self._calls.held.pop(decision.call, None)
