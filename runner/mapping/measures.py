"""Measures how near a reader comes to its record once layers before it take other candidates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from runner.mapping.decision import AGREES, NEAR
from runner.mapping.decisions import OUTPUTS, Decisions
from runner.mapping.layer_calls import ModelCalls
from runner.mapping.trials import Trials, Tried
from runner.mapping.ways import Changes, Step

# How many changes are measured in a row without success, how many of one kind, and with how many
# candidates of the reader.
BUDGET, MOST_OF_KIND, _MOST_OF_READER = 960, 160, 6


class Measured(NamedTuple):
    """Changes of layers, how far a reader is from its record after them, and what it takes then."""

    relative: float
    changes: Changes
    tried: Tried | None = None

    @property
    def agrees(self) -> bool:
        """Whether the reader agrees with its record."""
        return self.relative <= AGREES


class Measures:
    """Measures changes of the layers before a reader, which is a call or the outputs.

    Attributes:
      left: how many more changes may be measured without success.
    """

    def __init__(
        self,
        decisions: Decisions,
        trials: Trials,
        calls: ModelCalls,
        outputs: Callable[[Any], float],
    ) -> None:
        """Takes the decisions, trials, calls, and what tells how far outputs are from recorded."""
        self._decisions, self._trials, self._calls = decisions, trials, calls
        self._outputs = outputs
        self.left = BUDGET

    def of(self, reader: int, changes: Changes) -> Measured:
        """Measures how far a reader is from its record after changes, which are undone.

        An undecided reader takes the best of its candidates.
        """
        for candidate in changes.values():
            self._trials.load(candidate)
        reached = self._calls.call(None if reader == OUTPUTS else reader, changes)
        if reader == OUTPUTS:
            measured = Measured(self._outputs(reached), changes)
        else:
            tried = self._reached(reader, reached, changes)
            measured = Measured(tried.relative if tried else math.inf, changes, tried)
        for at in changes:
            self._trials.load(self._decisions.made[at].candidate)
        return measured

    def _reached(self, reader: int, run: Callable[[], Any], changes: Changes) -> Tried | None:
        if decision := self._decisions.made.get(reader):
            records = decision.record.split(" + ")
            return self._trials.attempt(reader, run, decision.candidate, records)
        free = [
            option
            for option in self._decisions.in_order(reader, changes)
            if not any(map(option.shares, changes.values()))
        ]
        return next(iter(self._trials.until_one_agrees(reader, run, free, _MOST_OF_READER)), None)

    def nearest(
        self, reader: int, ways: Iterable[Changes], best: Measured | None = None
    ) -> Measured:
        """Returns the changes by which a reader comes nearest to its record, or the first to agree.

        They are nearer than `best`, or that is returned.
        """
        best = best or Measured(math.inf, {})
        for changes in itertools.islice(ways, MOST_OF_KIND):
            if best.agrees or self.left <= 0:
                break
            self.left -= 1
            best = min(best, self.of(reader, changes), key=lambda one: one.relative)
        return best

    def step_by_step(self, reader: int, start: Changes, steps: Sequence[Step]) -> Measured:
        """Takes the steps by which a reader comes nearest, as long as one does."""
        best = self.of(reader, start)
        nearest = math.inf
        while self.left > 0 and AGREES < best.relative < nearest:
            nearest = best.relative
            for step in steps:
                best = self.nearest(reader, step(best.changes), best)
        changed = {at: o for at, o in best.changes.items() if start.get(at) != o}
        return best._replace(changes=changed)

    def adopt(self, changes: Changes) -> None:
        """Makes changes the decisions, so that as many may be measured as in the beginning."""
        self.left = BUDGET
        for candidate in changes.values():
            self._trials.load(candidate)
        self._calls.forget(changes)
        for at, candidate in sorted(changes.items()):
            decision, run = self._decisions.made[at], self._calls.call(at)
            tried = self._trials.until_one_agrees(at, run, [candidate])
            # One that is decided may be near, as it was before.
            most = NEAR if decision.by else AGREES
            best = next((one for one in tried if one.relative <= most), Tried(candidate, math.inf))
            if decision.record and not best.record:
                decision.by, decision.seen = "", 0
            if not decision.by:
                self._calls.held[at] = run
            if decision.candidate.kind != candidate.kind:
                self._decisions.refuted.add(decision.candidate.kind)
            self._decisions.refuted.discard(candidate.kind)
            decision.candidate, decision.is_hidden = candidate, False
            decision.relative, decision.record = best.relative, best.record
            decision.handed_on = best.expected
