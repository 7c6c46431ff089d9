"""Chooses the thread of a tiny step: one of TensorFlow's pool, or the caller's.

Handing a step over to the pool takes 40 to 100 us on two cores, most of a tiny step.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Iterable
from statistics import median

import numpy.typing as npt
import tensorflow as tf

from runner.internals.tensorflow import Step
from runner.session.fetches import operations_run

# Longer steps gain nothing that can be measured, and may lose by one thread.
LONGEST_S = 0.5e-3
# Calls in the pool that tell whether the step is short. The shortest of them counts: a busy machine
# lengthens the others, and the first one includes the optimization of the graph. A run of fewer
# steps would not gain the 0.1 s that preparing the other way takes for a tiny Keras model.
SAMPLES = 100
# A look compares the medians of so many blocks of calls each way, in turns, so that both ways meet
# the same load. The threads of the pool take tens of milliseconds to wake up: with blocks of 5
# calls, 61 of 100 starts were wrong where the pool takes two thirds of the time.
ROUNDS, BLOCK = 5, 100
# Calls from one look to the next: what runs beside the first steps of a process ends soon.
PAUSES = (200, 2_000, 20_000)
# Operations that wait for other operations of the step, which one thread would never reach, or that
# pass their threads on to others, which would then work one by one.
_NEEDS_POOL = (
    "Barrier",
    "Collective",
    "Dataset",
    "Iterator",
    "Nccl",
    "PyFunc",
    "Queue",
    "Reader",
    "Recv",
    "Send",
    "Stage",
)
# An iterator has the threads of the step that initialized it, whichever step takes its elements.
_TAKES_ELEMENTS = frozenset(
    {"IteratorGetNext", "IteratorGetNextSync", "IteratorV2", "OneShotIterator"}
)
IN_CALLERS_THREAD = "in_callers_thread"
"""The collection of bool scalars that are to be True for a step in the caller's thread."""


class ShortStep:
    """A step that settles on the faster of two ways to run it; both give the same values.

    Args:
      prepare: returns the step, which runs in the caller's thread if its argument is True.
      needs_pool: whether the step may never run there; called for short steps only.
      clock: seconds from any origin.
    """

    def __init__(
        self,
        prepare: Callable[[bool], Step],
        needs_pool: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        # Calls until the next look.
        self._untimed: float = 0
        self._looks = _looks(prepare, needs_pool)
        self._step, _ = next(self._looks)
        self._measuring = threading.Lock()

    @property
    def settled(self) -> bool:
        """Whether there are no more looks."""
        return self._untimed == math.inf

    def __call__(self, *values: npt.ArrayLike) -> list[object]:
        """Runs the step."""
        if self._untimed:
            self._untimed -= 1
            return self._step(*values)
        if not self._measuring.acquire(blocking=False):
            return self._step(*values)  # Another thread's call is timed.
        try:
            start = self._clock()
            result = self._step(*values)
            try:
                self._step, self._untimed = self._looks.send(self._clock() - start)
            except StopIteration as end:
                # Without a value if another thread's call was the last meanwhile.
                self._step, self._untimed = end.value or self._step, math.inf
            return result
        finally:
            self._measuring.release()


def _looks(
    prepare: Callable[[bool], Step], needs_pool: Callable[[], bool]
) -> Generator[tuple[Step, int], float, Step]:
    """Yields the step of the next call that is timed, after so many that are not.

    It is sent the time of that call, and returns the step of all further calls.
    """
    pooled = chosen = prepare(False)
    inline: Step | None = None
    for pause in (*PAUSES, None):
        if min((yield from _times(pooled, SAMPLES))) <= LONGEST_S:
            if inline is None:
                if needs_pool():
                    break
                inline = prepare(True)
            times: dict[Step, list[float]] = {pooled: [], inline: []}
            for _ in range(ROUNDS):
                for way, so_far in times.items():
                    so_far += yield from _times(way, BLOCK)
            chosen = min(times, key=lambda way: median(times[way]))
        if pause is not None:
            yield chosen, pause
    return chosen


def _times(step: Step, calls: int) -> Generator[tuple[Step, int], float, list[float]]:
    times = []
    for _ in range(calls):
        times.append((yield step, 0))
    return times


def needs_pool(elements: Iterable[tf.Tensor | tf.Operation]) -> bool:
    """Returns whether an operation that runs to fetch elements may need more than one thread.

    Operations that TensorFlow does not know, of other libraries, may too.
    """
    kinds = {kind for kind, _ in operations_run(elements)} - _TAKES_ELEMENTS
    return any(
        any(word in kind for word in _NEEDS_POOL) or not hasattr(tf.raw_ops, kind) for kind in kinds
    )
