"""Measures how near a reader comes to its record once layers before it take other candidates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from runner.mapping.candidates import Candidate
from runner.mapping.decision import AGREES, Decision
from runner.mapping.decisions import OUTPUTS, Decisions
from runner.mapping.layer_calls import ModelCalls
from runner.mapping.trials import Trials, Tried
from runner.mapping.ways import Ways

# How many other ways are tried for the layers before a call, with how many of its own candidates.
MOST_WAYS, _MOST_AGAIN = 160, 6
# How many ways are tried in a row without success, and how many steps.
_BUDGET, _MOST_STEPS = 2 * MOST_WAYS, 4 * MOST_WAYS
# What one of two parts that change together may take.
_MOST_OF_PAIR = 8


class Measured(NamedTuple):
    """Changes of layers, how far a reader is from its record after them, and what it takes then."""

    relative: float
    changes: Mapping[int, Candidate]
    tried: Tried | None = None


class Measures:
    """Measures changes of the layers before a reader, which is a call or the outputs.

    Attributes:
      decisions: the decisions on all calls.
      trials: evaluates candidates.
      calls: calls the model.
      outputs: returns how far outputs are from the recorded ones.
      ways: other ways for layers.
    """

    def __init__(
        self,
        decisions: Decisions,
        trials: Trials,
        calls: ModelCalls,
        outputs: Callable[[Any], float],
    ) -> None:
        self.decisions, self.trials, self.calls = decisions, trials, calls
        self.outputs = outputs
        self.ways = Ways(decisions, trials, calls.held)
        self.renew()

    def renew(self) -> None:
        """Allows as many ways as in the beginning."""
        self._budget, self._steps = _BUDGET, _MOST_STEPS

    def of(self, reader: int, changes: Mapping[int, Candidate]) -> float:
        """Returns how far a reader is from its record after changes, which stay until `undo`."""
        run = self._changed(reader, changes)
        if reader == OUTPUTS:
            return self.outputs(run)
        decision = self.decisions.made[reader]
        return self.trials.attempt(
            reader, run, decision.candidate, decision.record.split(" + ")
        ).relative

    def _changed(self, reader: int, changes: Mapping[int, Candidate]) -> Any:
        """Calls the model with changes up to a reader."""
        dirty = 0
        for at, candidate in changes.items():
            self.trials.load(candidate)
            self.decisions.made[at].handed_on = None
            dirty |= self.decisions.mask(at)
        return self.calls.call(None if reader == OUTPUTS else reader, dirty)

    def undo(self, changes: Iterable[int]) -> None:
        """Gives layers the values of their decisions again."""
        for at in changes:
            self.trials.load(self.decisions.made[at].candidate)

    @contextmanager
    def undone(self, changes: Iterable[int]) -> Iterator[None]:
        """Undoes changes after the block, which measures them, and what they no longer hand on."""
        made = self.decisions.made
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
        open_ = self.decisions.open(self.decisions.depends(reader))
        bare = {call for call, name in self.ways.parts(open_, reader) if name}
        group = [d for d in open_ if d in some or d.call in bare]
        before = {decision.call: decision.candidate for decision in group}
        # Few things are a parameter without a layer; a layer may be a part of any larger tensor.
        parts = sorted(self.ways.parts(group, reader), key=lambda part: not part[1])
        best = self._measured(reader, before)
        while best.relative > AGREES and self._steps > 0:
            start = best.relative
            single = ((part,) for part in parts)
            # Two that come nearer together alone: few things are a parameter without a layer.
            pairs = itertools.combinations((part for part in parts if part[1]), 2)
            for together in itertools.chain(single, pairs):
                if len(together) > 1 and best.relative < start:
                    break
                best = self._step(reader, best, together)
            if best.relative >= start:
                break
        changed = {c: o for c, o in best.changes.items() if o.key != before[c].key}
        return best._replace(changes=changed)

    def _step(self, reader: int, best: Measured, parts: Sequence[tuple[int, str]]) -> Measured:
        """Returns the nearest way in which parts take something else, or the nearest before."""
        ways = [best.changes]
        most = None if len(parts) == 1 else _MOST_OF_PAIR
        for part in parts:
            steps = (itertools.islice(self.ways.steps(now, *part), most) for now in ways)
            ways = [*itertools.chain.from_iterable(steps)]
        for changes in ways:
            if best.relative <= AGREES or self._steps <= 0:
                break
            self._steps -= 1
            measured = self._measured(reader, changes)
            best = min(best, measured, key=lambda one: one.relative)
        return best

    def _measured(self, reader: int, changes: Mapping[int, Candidate]) -> Measured:
        """Measures changes, with the best of a reader's candidates, and undoes them."""
        with self.undone(changes):
            if reader == OUTPUTS:
                return Measured(self.of(reader, changes), changes)
            run = self._changed(reader, changes)
            free = [
                option
                for option in self.decisions.in_order(reader, changes)
                if not any(map(option.shares, changes.values()))
            ]
            options = [option for option in free if self.trials.comparable(reader, option)]
            tried = [self.trials.attempt(reader, run, option) for option in options[:_MOST_AGAIN]]
            if not tried or min(one.relative for one in tried) > AGREES:
                alike = self.trials.alike(reader)
                others = [option for option in free if option not in options]
                tried += [
                    self.trials.attempt(reader, run, o, alike)
                    for o in others[:_MOST_AGAIN]
                    if alike
                ]
        best = min(tried, key=lambda one: one.relative, default=None)
        return Measured(best.relative if best else math.inf, changes, best)
