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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.mapping.branches import Branches
from runner.mapping.candidates import Candidate
from runner.mapping.decision import AGREES, MARGIN, NEAR, Decision, is_clear
from runner.mapping.decisions import OUTPUTS, Decisions
from runner.mapping.layer_calls import ContradictedError, ModelCalls, PauseError
from runner.mapping.measures import MOST_WAYS, Measures
from runner.mapping.source import RecordedCheckpoint
from runner.mapping.trials import Trials, Tried
from runner.planning.comparison import difference
from runner.proof.feeding import array_of

# How often the layers before a call may be searched in vain.
_MOST_SEARCHES = 2
# How many exchanges of layers that no record speaks for are tried.
_MOST_EXCHANGES = 4 * MOST_WAYS


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
        self._source, self._outputs = source, outputs
        self._decisions, self._trials = decisions, trials
        self._calls = ModelCalls(model, forward, decisions, self._solve)
        self._measures = Measures(decisions, trials, self._calls, outputs)
        self._branches = Branches(self._measures)
        self._elsewhere, self._taken_from = set[int](), set[int]()

    def run(self) -> float:
        """Decides on all variables; returns how far the outputs are in the end."""
        outputs = self._calls.reach()
        if self._outputs(outputs) > AGREES and not self._branches.rearrange(OUTPUTS):
            self._search(OUTPUTS)
        self._settle(OUTPUTS)
        self._calls.clear()
        for decision in self._decisions.made.values():
            decision.handed_on = None
        return self._outputs(self._calls.forward())

    def _solve(self, at: int, run: Callable[[], Any]) -> Any:
        """Decides on the variables of a call, or pauses the model to try other ways before it."""
        forced = self._branches.forced.get(at)
        options = [forced] if forced else self._decisions.in_order(at)
        if not options:
            return run()
        self._calls.held[at] = run
        calls = self._decisions.calls
        if any(call.variables for call in calls[at + 1 : calls[at].end]):
            self._decide(at, Tried(options[0], math.inf))
            return run()
        tried = self._trials.until_one_agrees(at, run, options)
        best = min(tried, key=lambda one: one.relative, default=None)
        if best is None or best.relative > AGREES:
            if self._branches.forced:
                raise ContradictedError
            if at not in self._elsewhere and self._decisions.again(at):
                raise PauseError(lambda: self._decide_elsewhere(at))
            # A module without a record contradicts nothing that has agreed before.
            is_silent = any(not self._source.has_record(option.modules) for option in options)
            if any(
                decision.searched < _MOST_SEARCHES and not (is_silent and decision.is_supported)
                for decision in self._decisions.open(self._decisions.calls[at].depends)
            ):
                raise PauseError(lambda: self._search(at))
            is_silent = options[0].is_named and not self._source.has_record(options[0].modules)
            if tried and not is_silent and self._branches.before(at):
                raise PauseError(lambda: self._reconsider(at, tried))
            self._fall_back(at, tried)
        else:
            self._decide(at, best)
        if self._decisions.is_reader(at):
            raise PauseError(lambda: self._settle(at))
        return self._calls.output(at, run)

    def _decide_elsewhere(self, at: int) -> None:
        """Decides by a later call of a layer: the recorded one may be first in the source alone."""
        self._elsewhere.add(at)
        for other in self._decisions.again(at):
            run = self._calls.reach(other, blind=self._decisions.mask(at))
            tried = self._trials.until_one_agrees(other, run, self._decisions.in_order(at))
            best = min(tried, key=lambda one: one.relative, default=None)
            if best is not None and best.relative <= AGREES:
                self._calls.held[at] = run
                self._decide(at, best, place=other)
                return

    def _reconsider(self, at: int, tried: Sequence[Tried]) -> None:
        if not self._branches.rearrange(at):
            self._fall_back(at, tried)

    def _decide(self, at: int, tried: Tried, place: int | None = None) -> None:
        """Takes a candidate; `place` is the call that was tried if it is another of the layer."""
        candidate = tried.candidate
        is_recorded = bool(tried.record)
        decision = Decision(at, candidate, tried.relative, tried.record, handed_on=tried.expected)
        self._decisions.made[at] = decision
        if is_recorded:
            self._decisions.kinds[candidate.kind] += 1
            self._decisions.place = max(self._source.place[module] for module in candidate.modules)
            self._compare_next(at, decision, at if place is None else place)
        self._trials.load(candidate)
        siblings = self._decisions.beside(at)
        rivals = self._measures.ways.rivals(at, candidate)
        is_near = decision.relative < NEAR and is_clear(decision.next, decision.relative)
        is_whole = not self._decisions.apart(at)
        if is_recorded and not siblings and not rivals and is_near and is_whole:
            decision.by = self._decisions.path(at)
            del self._calls.held[at]
        if place is not None:
            # The record is not of this call.
            decision.handed_on = None
            if not decision.by:
                decision.relative, decision.record = math.inf, ""

    def _take_from_others(self, at: int) -> None:
        """Forgets, once, the undecided layers that have what a layer has taken."""
        candidate = self._decisions.made[at].candidate
        others = {
            other
            for other, decision in self._decisions.made.items()
            if other != at and not decision.by and decision.candidate.shares(candidate)
        }
        others -= self._taken_from
        if not any(self._decisions.mask(o) & self._decisions.calls[at].depends for o in others):
            self._taken_from |= others
            self._branches.forget(others)

    def _compare_next(self, at: int, decision: Decision, place: int) -> None:
        """Compares the closest other candidate with the record that decided."""
        run, candidate = self._calls.held[at], decision.candidate
        for other in self._decisions.in_order(at):
            if other.key == candidate.key or not self._trials.comparable(place, other):
                continue
            if other.cut != candidate.cut or self._trials.is_equal(candidate, other):
                continue
            self._trials.load(other)
            self._trials.evaluations += 1
            value = array_of(run())
            expected = decision.handed_on
            if expected is None:
                decision.next = self._trials.attempt_behind(place, run, other).relative
            else:
                decision.next = difference(value, expected())[0]
            decision.close = None if is_clear(decision.next, decision.relative) else other
            return

    def _fall_back(self, at: int, tried: Sequence[Tried]) -> None:
        """Decides on a call of which no candidate agrees with a record."""
        options = self._decisions.in_order(at)
        # The record of a block is not the record of its parameters.
        recorded = (one for one in tried if self._source.has_record(one.candidate.modules))
        ranked = sorted(recorded, key=lambda one: one.relative)
        best = ranked[0] if ranked else None
        # What names propose counts as recorded, undecided, so that what follows can be decided.
        is_named = best is not None and best.candidate.is_named and best.relative < 1
        if best is not None and (best.relative < NEAR or is_named):
            others = (one for one in ranked if one.candidate.key != best.candidate.key)
            rival = next((one.relative for one in others), math.inf)
            if rival > 3 * best.relative or is_named:
                self._decide(at, best)
                for decision in self._decisions.open(
                    self._decisions.calls[at].depends | self._decisions.mask(at)
                ):
                    decision.is_hidden = True
                return

        def rank(option: Candidate) -> tuple[bool, ...]:
            recorded = {self._source.has_record([module]) for module in option.modules}
            # Parameters without a record beside tensors with one are hardly of one layer.
            return len(recorded) > 1, not option.is_named, recorded == {True}

        self._decide(at, Tried(min(options, key=rank), math.inf))

    def _adopt(self, changes: Mapping[int, Candidate]) -> None:
        """Makes changes the decisions."""
        dirty = 0
        for at, candidate in changes.items():
            decision, run = self._decisions.made[at], self._calls.held[at]
            dirty |= self._decisions.mask(at)
            tried = self._trials.attempt(at, run, candidate)
            if decision.candidate.kind != candidate.kind:
                self._decisions.refuted.add(decision.candidate.kind)
            self._decisions.refuted.discard(candidate.kind)
            decision.candidate, decision.is_hidden = candidate, False
            decision.relative, decision.record = tried.relative, tried.record
            decision.handed_on = tried.expected if tried.relative <= AGREES else None
            if tried.relative > AGREES:
                decision.relative, decision.record = math.inf, ""
            self._decisions.kinds[candidate.kind] += 3
        self._calls.forget(dirty)

    def _settle(self, reader: int) -> None:
        """Decides on layers before a reader that agrees, by exchanges that would change it."""
        depends = self._decisions.depends(reader)
        measured: dict[tuple[object, ...], float] = {}
        for group in [*self._decisions.groups(depends)]:
            before = {d.call: d.handed_on for d in group}
            handed_on = self._measures.of(reader, {})
            # As exchanges are measured: a record that is handed on hides what is before it.
            current = self._measures.of(reader, {d.call: d.candidate for d in group})
            tested, unclear, closest = set[int](), set[int](), math.inf
            for changes in self._measures.ways.exchanges(group, reader):
                there = self._measures.of(reader, changes)
                if there * MARGIN < current:
                    self._adopt(changes)
                    before |= {at: self._decisions.made[at].handed_on for at in changes}
                    handed_on = current = there
                    measured.clear()
                    continue
                self._measures.undo(changes)
                closest = min(closest, there)
                tested |= {*changes}
                if not is_clear(there, current):
                    unclear |= {*changes} - self._decisions.joined(group, changes)
            for decision in group:
                decision.handed_on = before[decision.call]
            for changes in self._measures.ways.elsewhere(group):
                if unclear >= {*changes} & {decision.call for decision in group}:
                    continue
                key = tuple(sorted((at, candidate.key) for at, candidate in changes.items()))
                if key not in measured and len(measured) < _MOST_EXCHANGES:
                    with self._measures.undone(changes):
                        measured[key] = self._measures.of(reader, changes)
                # What is not tried is not excluded.
                there = measured.get(key, current)
                closest = min(closest, there)
                tested |= {*changes}
                if not is_clear(there, current):
                    unclear |= {*changes}
            for decision in group:
                decision.next = min(decision.next, closest)
                decision.is_supported |= handed_on <= AGREES
                # Behind a layer that was only near, agreement proves nothing; a difference does.
                agreement = current if decision.is_unrecorded else handed_on
                known = not decision.is_hidden and agreement <= AGREES
                # Nor does a difference where its own record says otherwise: not all is tried.
                is_free = not decision.is_unrecorded or not self._source.has_record(
                    decision.candidate.modules
                )
                seen = known or (is_free and decision.call in tested and current < NEAR)
                # One that may be another layer agrees with other parameters then.
                is_known = reader == OUTPUTS or bool(self._decisions.made[reader].by)
                seen &= is_known or not decision.is_unrecorded
                if seen and decision.call not in unclear:
                    decision.seen |= depends
                if not self._decisions.mask(decision.call) & ~decision.seen:
                    decision.by = self._decisions.path(reader)
                    self._calls.held.pop(decision.call, None)

    def _search(self, reader: int) -> None:
        """Tries the undecided layers before a reader in other ways, until the reader agrees."""
        depends = self._decisions.depends(reader)
        groups = [
            group
            for group in self._decisions.groups(depends)
            if min(decision.searched for decision in group) < _MOST_SEARCHES
        ]
        single = ([*self._measures.ways.ways(group)] for group in groups)
        nearest = list(itertools.chain.from_iterable(single))
        pairs = (
            {**one, **two}
            for first, second in itertools.combinations(groups, 2)
            for one in itertools.islice(self._measures.ways.ways(first, second), 12)
            for two in itertools.islice(self._measures.ways.ways(second, first), 12)
            if not any(a.shares(b) for a in one.values() for b in two.values())
        )
        best = self._measures.nearest(reader, itertools.chain(nearest, pairs))
        if (best is None or best.relative > AGREES) and groups:
            group = [*itertools.chain.from_iterable(groups)]
            best = self._measures.step_by_step(reader, group)
        if best is not None and best.relative <= AGREES:
            self._measures.renew()
            self._adopt(best.changes)
            if best.tried:
                self._calls.held[reader] = run = self._calls.call(reader)
                records = best.tried.record.split(" + ")
                again = self._trials.attempt(reader, run, best.tried.candidate, records)
                self._decide(reader, again)
        else:
            for decision in itertools.chain.from_iterable(groups):
                decision.searched += 1
            if reader != OUTPUTS and not self._branches.rearrange(reader):
                options = self._decisions.in_order(reader)
                self._fall_back(
                    reader, self._trials.until_one_agrees(reader, self._calls.held[reader], options)
                )
        if reader in self._decisions.made and self._decisions.is_reader(reader):
            self._settle(reader)
        if reader in self._decisions.made and self._decisions.made[reader].agrees:
            self._take_from_others(reader)
