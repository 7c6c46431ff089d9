"""Calls a model up to a layer; what is decided hands on its record, what is not is solved."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from runner.errors import RunnerError
from runner.internals.keras import ReachedLayerError, replaced_calls
from runner.mapping.dataflow import inner_layers
from runner.mapping.decisions import Decisions


class PauseError(RunnerError):
    """Ends a call of the model, so that other ways are tried before it is called again."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self.work = work


class ContradictedError(RunnerError):
    """Ends a call of the model at a layer of which no candidate agrees."""


class ModelCalls:
    """Calls of one model.

    Attributes:
      held: index of a call of a layer -> how to make it again.
    """

    def __init__(
        self,
        model: Any,
        forward: Callable[[], Any],
        decisions: Decisions,
        solve: Callable[[int, Callable[[], Any]], Any],
    ) -> None:
        """Takes the model, its call, the decisions, and what decides on one call of a layer."""
        self.forward, self._decisions, self._solve = forward, decisions, solve
        self._calls = decisions.calls
        self._inside = inner_layers(model)
        self.held: dict[int, Callable[[], Any]] = {}
        self._cache: dict[int, Any] = {}
        self._at = self._dirty = self._blind = 0
        self._stop: int | None = None

    def reach(self, stop: int | None = None, blind: int = 0) -> Any:
        """Calls the model as `call` does, and does the work for which it pauses."""
        while True:
            # A pause holds what the model has computed, so it ends before the work.
            try:
                return self.call(stop, blind=blind)
            except PauseError as pause:
                work = pause.work
            work()

    def again(self, at: int) -> Callable[[], Any]:
        """Returns how to make a call of a layer again."""
        return self.held.get(at) or self.call(at)

    def call(self, stop: int | None = None, changed: Collection[int] = (), blind: int = 0) -> Any:
        """Calls the model, up to a call if one is given, and returns that call or the outputs.

        What does not depend on the variables of the calls in `changed`, which hand on no record,
        is not computed again. What reads those in `blind`, or depends on them, is not decided.
        """
        self._at, self._stop, self._blind = 0, stop, blind
        self._dirty = self._decisions.mask(*changed)
        try:
            with replaced_calls(self._on_call):
                return self.forward()
        except ReachedLayerError as reached:
            return reached.call
        finally:
            self._stop, self._dirty, self._blind = None, 0, 0

    def _on_call(self, original: Any, layer: Any, *arguments: Any, **keywords: Any) -> Any:
        at = self._at
        known = at < len(self._calls) and self._calls[at].layer is layer
        if not known or id(layer) in self._inside:
            return original(layer, *arguments, **keywords)
        call = self._calls[at]
        is_around = self._stop is not None and at <= self._stop < call.end
        if not is_around and at in self._cache and not (call.reads | call.depends) & self._dirty:
            self._at = call.end
            return self._cache[at]

        def run() -> Any:
            self._at = at + 1
            return original(layer, *arguments, **keywords)

        if at == self._stop:
            raise ReachedLayerError(run)
        is_blind = bool((call.reads | call.depends) & self._blind)
        if call.variables and at not in self._decisions.made and not is_blind:
            output = self._solve(at, run)
        else:
            output = self.output(at, run)
        self._at = call.end
        decision = self._decisions.made.get(at)
        is_recorded = decision is not None and decision.handed_on is not None
        if call.reads and not self._dirty and not is_recorded and not is_blind:
            self._cache[at] = output
        return output

    def output(self, at: int, run: Callable[[], Any]) -> Any:
        """Returns the record that a layer hands on, or what it computes.

        It computes where a layer within it is to be reached or decided.
        """
        decision = self._decisions.made.get(at)
        depends = self._calls[at].depends | self._decisions.mask(at)
        inner = range(at + 1, self._calls[at].end)
        is_needed = self._stop in inner or any(
            self._calls[one].variables and one not in self._decisions.made for one in inner
        )
        if decision is None or decision.handed_on is None or depends & self._dirty or is_needed:
            return run()
        record = keras.ops.convert_to_tensor(np.ascontiguousarray(decision.handed_on()))
        if self._calls[at].outputs == 1:
            return record
        # The record is of the first one, as a sequence before its states.
        output = run()
        rest = keras.tree.flatten(output)[1:]
        return keras.tree.pack_sequence_as(output, [record, *rest])

    def forget(self, changed: Collection[int]) -> None:
        """Computes again, from now on, what depends on the variables of some calls."""
        dirty = self._decisions.mask(*changed)
        for at, call in enumerate(self._calls):
            if (call.reads | call.depends) & dirty:
                self._cache.pop(at, None)

    def clear(self) -> None:
        """Forgets all calls."""
        self._cache.clear()
        self.held.clear()

    def saved(self) -> tuple[dict[int, Any], ...]:
        """Returns the decisions, the calls that can be made again, and what is computed."""
        made = {at: replace(decision) for at, decision in self._decisions.made.items()}
        return made, {**self.held}, {**self._cache}

    def restore(self, saved: tuple[dict[int, Any], ...]) -> None:
        """Takes again what `saved` has returned."""
        self._decisions.made, self.held, self._cache = saved
