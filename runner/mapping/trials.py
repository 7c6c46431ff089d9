"""Calls layers with candidates, and compares what they compute with records."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import keras
import numpy as np
from numpy.typing import NDArray

from runner.mapping.candidates import Candidate
from runner.mapping.cuts import Cut
from runner.mapping.dataflow import LayerCall
from runner.mapping.decision import AGREES
from runner.mapping.layouts import Variable
from runner.mapping.source import RecordedCheckpoint
from runner.planning.comparison import Arrangement, arranged, arrangements, difference
from runner.proof.feeding import array_of

# How many candidates of one call are tried.
_MOST_TRIED = 120
# What the module of a norm or a convolution may compute last.
_BEHIND = (
    keras.activations.relu,
    keras.activations.relu6,
    keras.activations.silu,
    keras.activations.hard_silu,
    keras.activations.gelu,
    keras.activations.sigmoid,
)

_Read: TypeAlias = Callable[[str], NDArray[Any]]
# Makes what should be computed from records, or an outline of it from outlines.
_Expected: TypeAlias = Callable[[_Read], NDArray[Any]]


@dataclass(frozen=True)
class Tried:
    """One evaluation of a candidate.

    Attributes:
      candidate: the candidate.
      relative: how far the output is from the closest record.
      record: the module of this record; empty where none could be compared.
      expected: reads the record in the layout of the output; None where it is of another place.
    """

    candidate: Candidate
    relative: float
    record: str = ""
    expected: Callable[[], NDArray[Any]] | None = None


class Trials:
    """Evaluates candidates.

    Attributes:
      evaluations: how often a layer was called.
    """

    def __init__(
        self,
        calls: Sequence[LayerCall],
        source: RecordedCheckpoint,
        variables: Mapping[str, tuple[Variable, Any]],
    ) -> None:
        self._calls, self._source, self._variables = calls, source, variables
        self.evaluations = 0

    def load(self, candidate: Candidate) -> None:
        """Gives the variables of a call the values of a candidate."""
        for name, taken in candidate.taken.items():
            facts, variable = self._variables[name]
            variable.assign(self._source.value(facts, taken))

    def attempt(
        self,
        at: int,
        run: Callable[[], Any],
        candidate: Candidate,
        records: Sequence[str] | None = None,
    ) -> Tried:
        """Calls a layer, and compares it with the records of a candidate or of names."""
        self.load(candidate)
        self.evaluations += 1
        value = array_of(run())
        function = getattr(self._calls[at].layer, "activation", None)
        best = Tried(candidate, math.inf)
        for record, expected in self._expected(candidate, records):
            for way, array in arranged(expected(self._source.record), value.shape, function):
                relative = difference(value, array)[0] if np.ptp(array) else math.inf
                if relative < best.relative:
                    read = partial(self._arranged, way, expected)
                    best = Tried(candidate, relative, record, read)
        return best

    def _arranged(self, way: Arrangement, expected: _Expected) -> NDArray[Any]:
        return way.of(expected(self._source.record))

    def until_one_agrees(
        self, at: int, run: Callable[[], Any], options: Sequence[Candidate]
    ) -> list[Tried]:
        """Tries candidates until one agrees, with its module's record, then with any record."""
        tried: list[Tried] = []
        comparable = [option for option in options if self.comparable(at, option)]
        for option in comparable[:_MOST_TRIED]:
            tried.append(self.attempt(at, run, option))
            if tried[-1].relative <= AGREES:
                return tried
        alike = self.alike(at)
        others = [option for option in options if option not in comparable]
        elsewhere = itertools.chain(
            (
                self.attempt(at, run, option, alike)
                for option in [*others, *comparable][: _MOST_TRIED // 10]
                if alike
            ),
            (self.attempt_behind(at, run, option) for option in comparable[: _MOST_TRIED // 10]),
        )
        agreeing = (one for one in elsewhere if one.relative <= AGREES)
        return [*tried, *itertools.islice(agreeing, 1)]

    def attempt_behind(self, at: int, run: Callable[[], Any], candidate: Candidate) -> Tried:
        """Compares what may follow in the module: an activation, or a factor.

        The record is of another place then, and is not handed on.
        """
        self.load(candidate)
        self.evaluations += 1
        value = array_of(run())
        best = Tried(candidate, math.inf)
        for record, expected in self._expected(candidate):
            for array in arrangements(expected(self._source.record), value.shape):
                factor = float((value * array).sum() / ((value * value).sum() or 1))
                behind = [value * np.float32(factor)] if np.ptp(array) else []
                behind += [np.asarray(function(value)) for function in _BEHIND]
                relative = min((difference(b, array)[0] for b in behind), default=math.inf)
                if relative < best.relative:
                    best = Tried(candidate, relative, record)
        return best

    def _expected(
        self, candidate: Candidate, names: Sequence[str] | None = None
    ) -> Iterator[tuple[str, _Expected]]:
        """Yields what a candidate should compute: the records of its modules, or of some names."""
        of_modules = self._source.records_of(candidate.modules)
        if names is not None and not {*names} <= {*of_modules}:
            yield from ((name, partial(_record, name)) for name in names)
        elif candidate.is_sum:
            shapes = [self._source.outlines[name].shape for name in of_modules]
            with suppress(ValueError):  # Records of something else.
                if len(shapes) == 2 and np.broadcast_shapes(*shapes):
                    yield " + ".join(of_modules), partial(_sum, of_modules)
        else:
            cut = candidate.cut
            for name in of_modules if names is None else names:
                if cut is None or cut.of_record(self._source.outlines[name]) is not None:
                    yield name, partial(_record, name, cut=cut)

    def comparable(self, at: int, candidate: Candidate) -> bool:
        """Whether a candidate has a record of the shape of a layer's output."""
        outline = self._source.outlines.__getitem__
        return any(self._fits(at, make(outline)) for _, make in self._expected(candidate))

    def alike(self, at: int) -> list[str]:
        """Returns the records of the shape of a layer's output."""
        return [name for name, array in self._source.outlines.items() if self._fits(at, array)]

    def _fits(self, at: int, record: NDArray[Any]) -> bool:
        shape = self._calls[at].shape
        size = math.prod(size or 0 for size in shape)
        if not size:
            return True
        return bool(arrangements(record, tuple(size or 0 for size in shape)))

    def is_equal(self, one: Candidate, other: Candidate) -> bool:
        """Whether two candidates give equal values, so that either is right."""
        return all(
            np.array_equal(
                self._source.value(self._variables[name][0], taken),
                self._source.value(self._variables[name][0], other.taken[name]),
            )
            for name, taken in one.taken.items()
        )


def _record(name: str, read: _Read, *, cut: Cut | None = None) -> NDArray[Any]:
    array = read(name)
    part = cut.of_record(array) if cut else None
    return array if part is None else part


def _sum(names: Sequence[str], read: _Read) -> NDArray[Any]:
    one, two = names
    total: NDArray[Any] = read(one) + read(two)
    return total
