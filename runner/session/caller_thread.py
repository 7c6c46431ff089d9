"""Decides by measuring whether a step's operations run in the caller's thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

Step = Callable[..., list[Any]]

# Steps longer than this gain nothing that can be measured, and have something to lose.
LONGEST_S = 0.5e-3
# Calls before the first comparison, and calls compared in each of the two ways.
WARM_UP = 10
SAMPLES = 60
# As many calls one way before it is the other's turn: threads that were just used are awake, which
# a change at every call would deny the pool.
BLOCK = 15
# The caller's thread has to take less than this part of the pool's time. The pool is never far off,
# while the caller's thread may take twice as long, and a busy machine blurs what is measured.
CLEARLY = 0.8
# An operation whose kernel waits for other operations of the step, or which hands the threads it
# is given to others: in one thread the first would wait forever, the second work one by one.
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
# Version of each graph and what was found in it, so that a large graph is looked at once.
_FUNCTIONS_WAIT: WeakKeyDictionary[tf.Graph, tuple[int, bool]] = WeakKeyDictionary()


class ThreadTrial:
    """A step that settles, while it is used, on the faster of two ways to run it.

    Running the operations in the caller's thread saves the hand-over to TensorFlow's pool of
    threads, which is half of a tiny step; a step with operations that can run side by side is
    faster in the pool. Both give the same values.
    """

    def __init__(
        self,
        pooled: Step,
        build_inline: Callable[[], Step],
        elements: Sequence[tf.Tensor | tf.Operation],
        settle: Callable[[Step], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Stores its arguments.

        Args:
          pooled: runs the step in the pool.
          build_inline: returns what runs it in the caller's thread.
          elements: what the step fetches; from these the operations that it runs are found.
          settle: is told the chosen step; by several threads perhaps.
          clock: seconds from any start.
        """
        self._pooled, self._build_inline = pooled, build_inline
        self._elements, self._settle, self._clock = elements, settle, clock
        self._inline: Step | None = None
        self._calls = 0
        self._times: tuple[list[float], list[float]] = ([], [])

    def __call__(self, *values: Any) -> list[Any]:
        """Runs the step one way or the other and notes how long it takes."""
        self._calls += 1
        if self._inline is None and len(self._times[0]) < WARM_UP:
            return self._timed(0, self._pooled, values)
        if self._inline is None:
            if min(self._times[0]) > LONGEST_S or needs_pool(self._elements):
                self._settle(self._pooled)
                return self._pooled(*values)
            self._times[0].clear()
            self._inline = self._build_inline()
        way = self._calls // BLOCK % 2
        result = self._timed(way, self._inline if way else self._pooled, values)
        pooled, inline = self._times
        if min(len(pooled), len(inline)) >= SAMPLES:
            faster = statistics.median(inline) < CLEARLY * statistics.median(pooled)
            self._settle(self._inline if faster else self._pooled)
        return result

    def _timed(self, way: int, step: Step, values: Sequence[Any]) -> list[Any]:
        start = self._clock()
        result = step(*values)
        self._times[way].append(self._clock() - start)
        return result


def needs_pool(elements: Sequence[tf.Tensor | tf.Operation]) -> bool:
    """Says whether a step may need more than one thread to end, or to feed itself.

    Of a step that calls a function all functions of the graph are looked into, not just its own.
    """
    pending = [getattr(element, "op", element) for element in elements]
    graph, seen, calls = pending[0].graph, set(pending), False
    while pending:
        operation = pending.pop()
        # What is no operation of TensorFlow's is a function of the graph, called by its name.
        if _waits(operation.type) or not hasattr(tf.raw_ops, operation.type):
            return True
        calls = calls or any("func" in attribute.type for attribute in operation.op_def.attr)
        for other in [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]:
            if other not in seen:
                seen.add(other)
                pending.append(other)
    return calls and _some_function_waits(graph)


def _waits(kind: str) -> bool:
    return any(word in kind for word in _NEEDS_POOL)


def _some_function_waits(graph: tf.Graph) -> bool:
    version, waits = _FUNCTIONS_WAIT.get(graph, (None, False))
    if version != graph.version:
        functions = graph.as_graph_def().library.function
        waits = any(_waits(node.op) for function in functions for node in function.node_def)
        _FUNCTIONS_WAIT[graph] = (graph.version, waits)
    return waits
