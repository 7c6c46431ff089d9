"""Measures how near a reader comes to its record once layers before it take other candidates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from runner.mapping.candidates import Candidate
from runner.mapping.decisions import AGREES, OUTPUTS, Decision, Decisions
from runner.mapping.layer_calls import ModelCalls
from runner.mapping.trials import Trials, Tried
from runner.mapping.ways import Ways

# How many other ways are tried for the layers before a call, with how many of its own candidates.
MOST_WAYS, _MOST_AGAIN = 160, 6
# How many ways are tried in a row without success, and how many steps: also from orders of what
# parameters take.
_BUDGET, _MOST_STEPS = 2 * MOST_WAYS, 5 * MOST_WAYS
_MOST_OF_ORDERS, _MOST_STARTS = MOST_WAYS, MOST_WAYS
# What one of two parts that change together may take.
_MOST_OF_PAIR = 8


class Measured(NamedTuple):
    """Changes of layers, how far a reader is from its record after them, and what it takes then."""

    relative: float
    changes: Mapping[int, Candidate]
    tried: Tried | None = None


class Measures:
    """Measures changes of the layers before a reader, which is a call or the outputs."""

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
        self.ways = Ways(decisions, trials, calls.held)
        self.renew()

    def renew(self) -> None:
        """Allows as many ways as in the beginning."""
        self._budget, self._steps = _BUDGET, _MOST_STEPS

    def of(self, reader: int, changes: Mapping[int, Candidate]) -> float:
        """Returns how far a reader is from its record after changes, which stay until `undo`."""
        run = self._changed(reader, changes)
        if reader == OUTPUTS:
            return self._outputs(run)
        decision = self._decisions.made[reader]
        return self._trials.attempt(
            reader, run, decision.candidate, decision.record.split(" + ")
        ).relative

    def _changed(self, reader: int, changes: Mapping[int, Candidate]) -> Any:
        """Calls the model with changes up to a reader."""
        dirty = 0
        for at, candidate in changes.items():
            self._trials.load(candidate)
            self._decisions.made[at].handed_on = None
            dirty |= self._decisions.mask(at)
        return self._calls.call(None if reader == OUTPUTS else reader, dirty)

    def undo(self, changes: Iterable[int]) -> None:
        """Gives layers the values of their decisions again."""
        for at in changes:
            self._trials.load(self._decisions.made[at].candidate)

    @contextmanager
    def undone(self, changes: Iterable[int]) -> Iterator[None]:
        """Undoes changes after the block, which measures them, and what they no longer hand on."""
        made = self._decisions.made
        before = {at: made[at].handed_on for at in changes}
        yield
        self.undo(changes)
        for at, handed_on in before.items():
            made[at].handed_on = handed_on

    def nearest(self, reader: int, ways: Iterable[Mapping[int, Candidate]]) -> Measured | None:
        """Returns the way by which a reader comes nearest to its record, the first that agrees."""
        best: Measured | None = None
        for changes in itertools.islice(ways, max(0, min(MOST_WAYS, self._budget))):
            self._budget -= 1
            measured = self._measured(reader, changes)
            if best is None or measured.relative < best.relative:
                best = measured
            if measured.relative <= AGREES:
                break
        return best

    def step_by_step(self, reader: int, some: Sequence[Decision]) -> Measured:
        """Changes what a variable takes after another, as long as a reader comes nearer by it.

        The variables are of some decisions, and all undecided parameters without a layer.
        """
        open_ = self._decisions.open(self._decisions.depends(reader))
        bare = {call for call, name in self.ways.parts(open_, reader) if name}
        group = [d for d in open_ if d in some or d.call in bare]
        before = {decision.call: decision.candidate for decision in group}
        # Few things are a parameter without a layer; a layer may be a part of any larger tensor.
        parts = sorted(self.ways.parts(group, reader), key=lambda part: not part[1])
        known: dict[object, Measured] = {}
        best = self._descend(reader, before, parts, known)
        parameters = [part for part in parts if part[1]]
        left = max(0, self._steps - _MOST_OF_ORDERS)
        for start in itertools.islice(self.ways.shuffled(before, parameters), _MOST_STARTS):
            if best.relative <= AGREES or self._steps <= left:
                break
            again = self._descend(reader, start, parameters, known, is_order=True)
            best = min(best, again, key=lambda measured: measured.relative)
        # Two that come nearer together alone: few things are a parameter without a layer.
        while best.relative > AGREES and self._steps > 0:
            farthest = best.relative
            for pair in itertools.combinations(parameters, 2):
                if best.relative < farthest:
                    break
                best = self._step(reader, best, pair, known)
            if best.relative >= farthest:
                break
            best = self._descend(reader, best.changes, parts, known)
        changed = {c: o for c, o in best.changes.items() if o.key != before[c].key}
        return best._replace(changes=changed)

    def _descend(
        self,
        reader: int,
        start: Mapping[int, Candidate],
        parts: Sequence[tuple[int, str]],
        known: dict[object, Measured],
        *,
        is_order: bool = False,
    ) -> Measured:
        """Changes one part after another from a start, as long as a reader comes nearer by it.

        From an order of what parameters take, only to other orders.
        """
        best, before = self._known(reader, start, known), math.inf
        while AGREES < best.relative < before and self._steps > 0:
            before = best.relative
            for part in parts:
                best = self._step(reader, best, [part], known, is_order=is_order)
        return best

    def _step(
        self,
        reader: int,
        best: Measured,
        parts: Sequence[tuple[int, str]],
        known: dict[object, Measured],
        *,
        is_order: bool = False,
    ) -> Measured:
        """Returns the nearest way in which parts take something else, or the nearest before."""
        ways = [best.changes]
        most = None if len(parts) == 1 else _MOST_OF_PAIR
        others = self.ways.exchanged if is_order else self.ways.steps
        for part in parts:
            steps = (itertools.islice(others(now, *part), most) for now in ways)
            ways = [*itertools.chain.from_iterable(steps)]
        for changes in ways:
            if best.relative <= AGREES or self._steps <= 0:
                break
            measured = self._known(reader, changes, known)
            best = min(best, measured, key=lambda one: one.relative)
        return best

    def _known(
        self, reader: int, changes: Mapping[int, Candidate], known: dict[object, Measured]
    ) -> Measured:
        """Returns changes as they were measured, or measures them."""
        key = tuple(candidate.key for candidate in changes.values())
        if key not in known:
            self._steps -= 1
            known[key] = self._measured(reader, changes)
        return known[key]

    def _measured(self, reader: int, changes: Mapping[int, Candidate]) -> Measured:
        """Measures changes, with the best of a reader's candidates, and undoes them."""
        with self.undone(changes):
            if reader == OUTPUTS:
                return Measured(self.of(reader, changes), changes)
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
                    self._trials.attempt(reader, run, o, alike)
                    for o in others[:_MOST_AGAIN]
                    if alike
                ]
        best = min(tried, key=lambda one: one.relative, default=None)
        return Measured(best.relative if best else math.inf, changes, best)
