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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from runner.errors import RunnerError
from runner.internals.keras import replaced_calls
from runner.mapping.candidates import Candidate
from runner.mapping.dataflow import LayerCall, inner_layers
from runner.mapping.decisions import (
    AGREES,
    MARGIN,
    NEAR,
    OUTPUTS,
    Decision,
    Decisions,
    is_clear,
)
from runner.mapping.source import RecordedCheckpoint
from runner.mapping.trials import Trials, Tried
from runner.mapping.ways import Ways
from runner.restoration.feeding import array_of
from runner.restoration.proof import difference

# How many other ways are tried for the layers before a call, with how many of its own candidates,
# and how often those layers may be searched in vain.
_MOST_WAYS, _MOST_AGAIN, _MOST_SEARCHES = 160, 6, 2
# How many ways are tried in a row without success.
_BUDGET = 2 * _MOST_WAYS


class _PauseError(RunnerError):
    """Ends a call of the model, so that other ways are tried before it is called again."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self.work = work


class _ReachedError(RunnerError):
    """Ends a call of the model at a layer."""

    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__()
        self.run = run


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
        self._forward, self._source, self._outputs = forward, source, outputs
        self._calls: Sequence[LayerCall] = decisions.calls
        self._decisions, self._trials = decisions, trials
        self._inside = inner_layers(model)
        self._held: dict[int, Callable[[], Any]] = {}
        self._cache: dict[int, Any] = {}
        self._ways = Ways(decisions, trials, self._held)
        self._budget = _BUDGET
        self._at = self._dirty = 0
        self._stop: int | None = None

    def run(self) -> float:
        """Decides on all variables; returns how far the outputs are in the end."""
        while True:
            try:
                outputs = self._call()
                break
            except _PauseError as pause:
                pause.work()
        if self._outputs(outputs) > AGREES:
            self._search(OUTPUTS)
        self._settle(OUTPUTS)
        self._cache.clear()
        self._held.clear()
        for decision in self._decisions.made.values():
            decision.handed_on = None
        return self._outputs(self._forward())

    def _call(self, stop: int | None = None, dirty: int = 0) -> Any:
        """Calls the model, up to a call if one is given, and returns that call or the outputs.

        What does not depend on the variables in `dirty` is not computed again.
        """
        self._at, self._stop, self._dirty = 0, stop, dirty
        try:
            with replaced_calls(self._on_call):
                return self._forward()
        except _ReachedError as reached:
            return reached.run
        finally:
            self._stop, self._dirty = None, 0

    def _on_call(self, original: Any, layer: Any, *arguments: Any, **keywords: Any) -> Any:
        at = self._at
        known = at < len(self._calls) and self._calls[at].layer is layer
        if not known or id(layer) in self._inside:
            return original(layer, *arguments, **keywords)
        call = self._calls[at]
        if at in self._cache and not (call.reads | call.depends) & self._dirty:
            self._at = call.end
            return self._cache[at]

        def run() -> Any:
            self._at = at + 1
            return original(layer, *arguments, **keywords)

        if at == self._stop:
            raise _ReachedError(run)
        if call.variables and at not in self._decisions.made:
            output = self._solve(at, run)
        else:
            output = self._output(at, run)
        self._at = call.end
        if call.reads and not self._dirty:
            self._cache[at] = output
        return output

    def _output(self, at: int, run: Callable[[], Any]) -> Any:
        decision = self._decisions.made.get(at)
        clean = not self._calls[at].depends & self._dirty
        if decision is None or decision.handed_on is None or not clean:
            return run()
        return keras.ops.convert_to_tensor(np.ascontiguousarray(decision.handed_on))

    def _solve(self, at: int, run: Callable[[], Any]) -> Any:
        """Decides on the variables of a call, or pauses the model to try other ways before it."""
        options = self._decisions.in_order(at)
        if not options:
            return run()
        self._held[at] = run
        if any(call.variables for call in self._calls[at + 1 : self._calls[at].end]):
            self._decide(at, Tried(options[0], math.inf))
            return run()
        tried = self._trials.until_one_agrees(at, run, options)
        best = min(tried, key=lambda one: one.relative, default=None)
        if best is None or best.relative > AGREES:
            # A module without a record contradicts nothing that has agreed before.
            is_silent = any(not self._source.has_record(option.modules) for option in options)
            if any(
                decision.searched < _MOST_SEARCHES and not (is_silent and decision.is_supported)
                for decision in self._decisions.open(self._calls[at].depends)
            ):
                raise _PauseError(lambda: self._search(at))
            self._fall_back(at, tried)
        else:
            self._decide(at, best)
        if self._decisions.is_reader(at):
            raise _PauseError(lambda: self._settle(at))
        return self._output(at, run)

    def _decide(self, at: int, tried: Tried) -> None:
        candidate = tried.candidate
        is_near = bool(tried.record)
        decision = Decision(at, candidate, tried.relative, tried.record, handed_on=tried.expected)
        self._decisions.made[at] = decision
        if is_near:
            self._decisions.kinds[candidate.kind] += 1
            self._decisions.place = max(self._source.place[module] for module in candidate.modules)
            self._compare_next(at, decision)
        self._trials.load(candidate)
        siblings = [
            other
            for other in self._decisions.siblings(at)
            if self._calls[at].inputs == self._calls[other].inputs
        ]
        rivals = self._ways.rivals(at, candidate)
        if is_near and not siblings and not rivals and is_clear(decision.next, decision.relative):
            decision.by = self._decisions.path(at)
            del self._held[at]

    def _compare_next(self, at: int, decision: Decision) -> None:
        """Compares the closest other candidate with the record that decided."""
        run, candidate = self._held[at], decision.candidate
        for other in self._decisions.in_order(at):
            if other.key == candidate.key or not self._trials.comparable(at, other):
                continue
            if other.cut != candidate.cut or self._trials.is_equal(candidate, other):
                continue
            self._trials.load(other)
            self._trials.evaluations += 1
            value = array_of(run())
            expected = decision.handed_on
            if expected is None:
                decision.next = self._trials.attempt_behind(at, run, other).relative
            else:
                decision.next = difference(value, expected)[0]
            decision.close = None if is_clear(decision.next, decision.relative) else other
            return

    def _fall_back(self, at: int, tried: Sequence[Tried]) -> None:
        """Decides on a call of which no candidate agrees with a record."""
        options = self._decisions.in_order(at)
        ranked = sorted(tried, key=lambda one: one.relative)
        best = ranked[0] if ranked else None
        # What names propose goes on as recorded, undecided, so that what follows can be decided.
        is_named = best is not None and best.candidate.is_named and best.relative < 1
        if best is not None and (best.relative < NEAR or is_named):
            others = (one for one in ranked if one.candidate.key != best.candidate.key)
            rival = next((one.relative for one in others), math.inf)
            if rival > 3 * best.relative or is_named:
                self._decide(at, best)
                for decision in self._decisions.open(
                    self._calls[at].depends | self._decisions.mask(at)
                ):
                    decision.is_hidden = True
                return
        silent = [o for o in options if not self._source.has_record(o.modules)]
        first = next((o for o in (*silent, *options) if o.is_named), (*silent, *options)[0])
        self._decide(at, Tried(first, math.inf))

    def _measure(self, reader: int, changes: Mapping[int, Candidate]) -> float:
        """Returns how far a reader is from its record after changes before it."""
        run = self._changed(reader, changes)
        if reader == OUTPUTS:
            return self._outputs(run)
        decision = self._decisions.made[reader]
        return self._trials.attempt(
            reader, run, decision.candidate, decision.record.split(" + ")
        ).relative

    def _changed(self, reader: int, changes: Mapping[int, Candidate]) -> Any:
        """Calls the model with changes up to a reader; the changes are not undone."""
        dirty = 0
        for at, candidate in changes.items():
            self._trials.load(candidate)
            self._decisions.made[at].handed_on = None
            dirty |= self._decisions.mask(at)
        return self._call(None if reader == OUTPUTS else reader, dirty)

    def _undo(self, changes: Mapping[int, Candidate]) -> None:
        for at in changes:
            self._trials.load(self._decisions.made[at].candidate)

    def _adopt(self, changes: Mapping[int, Candidate]) -> None:
        """Makes changes the decisions."""
        dirty = 0
        for at, candidate in changes.items():
            decision, run = self._decisions.made[at], self._held[at]
            dirty |= self._decisions.mask(at)
            tried = self._trials.attempt(at, run, candidate)
            if decision.candidate.kind != candidate.kind:
                self._decisions.refuted.add(decision.candidate.kind)
            self._decisions.refuted.discard(candidate.kind)
            decision.candidate = candidate
            decision.relative, decision.record = tried.relative, tried.record
            decision.handed_on = tried.expected if tried.relative <= AGREES else None
            if tried.relative > AGREES:
                decision.relative, decision.record = math.inf, ""
            self._decisions.kinds[candidate.kind] += 3
        for at, call in enumerate(self._calls):
            if (call.reads | call.depends) & dirty:
                self._cache.pop(at, None)

    def _settle(self, reader: int) -> None:
        """Decides on layers before a reader that agrees, by exchanges that would change it."""
        depends = self._decisions.depends(reader)
        for group in [*self._decisions.groups(depends)]:
            before = {d.call: d.handed_on for d in group}
            current = self._measure(reader, {})
            tested, unclear, closest = set[int](), set[int](), math.inf
            for changes in self._ways.exchanges(group):
                there = self._measure(reader, changes)
                if there * MARGIN < current:
                    self._adopt(changes)
                    before |= {at: self._decisions.made[at].handed_on for at in changes}
                    current = there
                    continue
                self._undo(changes)
                closest = min(closest, there)
                tested |= {*changes}
                if not is_clear(there, current):
                    unclear |= {*changes} - self._decisions.joined(group, changes)
            for decision in group:
                decision.handed_on = before[decision.call]
                decision.next = min(decision.next, closest)
                decision.is_supported |= current <= AGREES
                # Behind a layer that was only near, agreement proves nothing; a difference does.
                known = not decision.is_hidden and current <= AGREES
                seen = known or (decision.call in tested and current < NEAR)
                if seen and decision.call not in unclear:
                    decision.by = self._decisions.path(reader)
                    self._held.pop(decision.call, None)

    def _search(self, reader: int) -> None:
        """Tries the undecided layers before a reader in other ways, until the reader agrees."""
        depends = self._decisions.depends(reader)
        groups = [
            group
            for group in self._decisions.groups(depends)
            if min(decision.searched for decision in group) < _MOST_SEARCHES
        ]
        single = ([*self._ways.ways(group)] for group in groups)
        nearest = list(itertools.chain.from_iterable(single))
        pairs = (
            {**one, **two}
            for first, second in itertools.combinations(groups, 2)
            for one in itertools.islice(self._ways.ways(first), 12)
            for two in itertools.islice(self._ways.ways(second), 12)
        )
        best = self._nearest(reader, itertools.chain(nearest, pairs))
        if best is not None and best[0] <= AGREES:
            _, changes, tried = best
            self._budget = _BUDGET
            self._adopt(changes)
            if tried:
                self._held[reader] = run = self._call(reader)
                records = tried.record.split(" + ")
                again = self._trials.attempt(reader, run, tried.candidate, records)
                self._decide(reader, again)
        else:
            for decision in itertools.chain.from_iterable(groups):
                decision.searched += 1
            if reader != OUTPUTS:
                options = self._decisions.in_order(reader)
                self._fall_back(
                    reader, self._trials.until_one_agrees(reader, self._held[reader], options)
                )
        if reader != OUTPUTS and self._decisions.is_reader(reader):
            self._settle(reader)

    def _nearest(
        self, reader: int, ways: Iterable[dict[int, Candidate]]
    ) -> tuple[float, dict[int, Candidate], Tried | None] | None:
        """Returns the way by which a reader comes nearest to its record, the first that agrees."""
        best: tuple[float, dict[int, Candidate], Tried | None] | None = None
        handed_on = {at: decision.handed_on for at, decision in self._decisions.made.items()}
        for changes in itertools.islice(ways, max(0, min(_MOST_WAYS, self._budget))):
            self._budget -= 1
            relative, tried = self._best(reader, changes)
            self._undo(changes)
            for at in changes:
                self._decisions.made[at].handed_on = handed_on[at]
            if best is None or relative < best[0]:
                best = relative, changes, tried
            if relative <= AGREES:
                break
        return best

    def _best(self, reader: int, changes: Mapping[int, Candidate]) -> tuple[float, Tried | None]:
        """Returns how near a reader comes after changes, with the best of its candidates."""
        if reader == OUTPUTS:
            return self._measure(reader, changes), None
        run = self._changed(reader, changes)
        free = [
            option
            for option in self._decisions.in_order(reader, changes)
            if not any(map(option.shares, changes.values()))
        ]
        options = [option for option in free if self._trials.comparable(reader, option)]
        tried = [self._trials.attempt(reader, run, option) for option in options[:_MOST_AGAIN]]
        if not tried or min(one.relative for one in tried) > AGREES:
            alike = self._trials.alike(reader)
            others = [option for option in free if option not in options]
            tried += [
                self._trials.attempt(reader, run, o, alike) for o in others[:_MOST_AGAIN] if alike
            ]
        best = min(tried, key=lambda one: one.relative, default=None)
        return (best.relative, best) if best else (math.inf, None)
