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
from runner.mapping.module_fitting import Taken
from runner.mapping.source import RecordedCheckpoint
from runner.planning.comparison import Arrangement, arranged, arrangements, difference, factor_to
from runner.proof.feeding import activation_of, array_of

# How many candidates of one call are tried, and how many with records of other places.
_MOST_TRIED, _MOST_ELSEWHERE = 120, 12
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

    @property
    def agrees(self) -> bool:
        """Whether it computes the record."""
        return self.relative <= AGREES


class Trials:
    """Evaluates candidates."""

    def __init__(
        self,
        calls: Sequence[LayerCall],
        source: RecordedCheckpoint,
        variables: Mapping[str, tuple[Variable, Any]],
    ) -> None:
        self._calls, self._source, self._variables = calls, source, variables
        self._loaded: dict[str, Taken] = {}

    def load(self, candidate: Candidate) -> None:
        """Gives the variables of a call the values of a candidate."""
        for name, taken in candidate.taken.items():
            if self._loaded.get(name) != taken:
                facts, variable = self._variables[name]
                variable.assign(self._source.value(facts, taken))
                self._loaded[name] = taken

    def attempt(
        self,
        at: int,
        run: Callable[[], Any],
        candidate: Candidate,
        records: Sequence[str] | None = None,
        *,
        behind: bool = False,
    ) -> Tried:
        """Calls a layer, and compares it with the records of a candidate or of names.

        What may follow in the module, an activation or a factor, is compared with `behind`. The
        record is of another place then, and is not handed on.
        """
        self.load(candidate)
        value = array_of(run())
        function = None if behind else activation_of(self._calls[at].layer)
        best = Tried(candidate, math.inf)
        for record, expected in self._expected(candidate, records):
            for way, array in arranged(expected(self._source.record), value.shape, function):
                some = _behind(value, array) if behind else [value]
                differences = (difference(one, array)[0] for one in some if np.ptp(array))
                relative = min(differences, default=math.inf)
                if relative < best.relative:
                    read = None if behind else partial(self._arranged, way, expected)
                    best = Tried(candidate, relative, record, read)
        return best

    def difference(
        self, run: Callable[[], Any], candidate: Candidate, expected: NDArray[Any]
    ) -> float:
        """Calls a layer, and returns how far it is from what is expected."""
        self.load(candidate)
        return difference(array_of(run()), expected)[0]

    def _arranged(self, way: Arrangement, expected: _Expected) -> NDArray[Any]:
        return way.of(expected(self._source.record))

    def until_one_agrees(
        self, at: int, run: Callable[[], Any], options: Sequence[Candidate], most: int = _MOST_TRIED
    ) -> list[Tried]:
        """Tries candidates until one agrees, with its module's record, then with any record.

        Returns the closest first.
        """
        tried: list[Tried] = []
        comparable = [option for option in options if self.comparable(at, option)]
        for option in comparable[:most]:
            tried.append(self.attempt(at, run, option))
            if tried[-1].agrees:
                return tried[::-1]
        few = comparable[: most * _MOST_ELSEWHERE // _MOST_TRIED]
        others = [option for option in options if option not in comparable]
        alike = [*others, *few][: min(most, _MOST_ELSEWHERE)] if (records := self.alike(at)) else []
        elsewhere = itertools.chain(
            (self.attempt(at, run, option, records) for option in alike),
            (self.attempt(at, run, option, behind=True) for option in few),
        )
        agreeing = (one for one in elsewhere if one.agrees)
        return sorted([*tried, *itertools.islice(agreeing, 1)], key=lambda one: one.relative)

    def _expected(
        self, candidate: Candidate, names: Sequence[str] | None = None
    ) -> Iterator[tuple[str, _Expected]]:
        """Yields what a candidate should compute: the records of its modules, or of some names."""
        of_modules = self._source.records_of(candidate.modules)
        if names is not None and not {*names} <= {*of_modules}:
            yield from ((name, partial(_record, name)) for name in names)
        elif candidate.joined == "concat":
            shapes = [self._source.outlines[name].shape for name in of_modules]
            if len({shape[:-1] for shape in shapes}) == 1 and len(shapes) == len(candidate.modules):
                yield " + ".join(of_modules), partial(_concatenated, of_modules)
        elif candidate.joined:
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
            taken == other.taken[name]
            or np.array_equal(
                self._source.value(self._variables[name][0], taken),
                self._source.value(self._variables[name][0], other.taken[name]),
            )
            for name, taken in one.taken.items()
        )


def _record(name: str, read: _Read, *, cut: Cut | None = None) -> NDArray[Any]:
    array = read(name)
    part = cut.of_record(array) if cut else None
    return array if part is None else part


def _behind(value: NDArray[Any], record: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yields what a module may compute last: a multiple of a value, or an activation of it."""
    yield value * np.float32(factor_to(value, record))
    yield from (np.asarray(function(value)) for function in _BEHIND)


def _concatenated(names: Sequence[str], read: _Read) -> NDArray[Any]:
    return np.concatenate([read(name) for name in names], -1)


def _sum(names: Sequence[str], read: _Read) -> NDArray[Any]:
    one, two = names
    total: NDArray[Any] = read(one) + read(two)
    return total
