"""Runs a tiny step in the caller's thread where that is faster than TensorFlow's pool of threads.

Handing a step over to the pool takes 40 to 100 us on two cores, most of a tiny step. With this
choice the step of `benchmarks.monitored_step` (4 hooks, a tiny graph) takes 0.26 to 0.40 of a bare
`Session.run`, without it 0.57 to 0.86; steps of 1 ms and more are not affected.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy.typing as npt
import tensorflow as tf

from runner.tensorflow_internals import Step

# Longer steps gain nothing that can be measured, and may lose by one thread.
LONGEST_S = 0.5e-3
# Calls timed each way. The shortest of them counts: a busy machine lengthens the others, and the
# first one includes the optimization of the graph.
SAMPLES = 20
# Operations that wait for other operations of the step, which one thread would never reach, or that
# pass the threads they are given on to others, which would then work one by one.
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
        self._prepare, self._needs_pool, self._clock = prepare, needs_pool, clock
        self._step = prepare(False)
        self._times: list[float] = []
        # The step in the pool and its shortest time, while the caller's thread is timed.
        self._pooled: tuple[Step, float] | None = None
        self.settled = False

    def __call__(self, *values: npt.ArrayLike) -> list[object]:
        """Runs the step."""
        if self.settled:
            return self._step(*values)
        start = self._clock()
        result = self._step(*values)
        times = self._times
        times.append(self._clock() - start)
        if len(times) == SAMPLES:
            self._compare(min(times))
        return result

    def _compare(self, shortest: float) -> None:
        if self._pooled is not None:
            pooled, time_in_pool = self._pooled
            if shortest >= time_in_pool:
                self._step = pooled
            self.settled = True
        elif shortest > LONGEST_S or self._needs_pool():
            self.settled = True
        else:
            self._pooled = (self._step, shortest)
            self._step = self._prepare(True)
            self._times = []


def needs_pool(graph: tf.Graph) -> bool:
    """Returns whether some operation of the graph or its functions may need more than one thread.

    Operations that TensorFlow does not know, of other libraries, may too.
    """
    definition = graph.as_graph_def()
    functions = definition.library.function
    known = {function.signature.name for function in functions}
    kinds = {node.op for node in definition.node}
    kinds.update(node.op for function in functions for node in function.node_def)
    return any(
        any(word in kind for word in _NEEDS_POOL) or not hasattr(tf.raw_ops, kind)
        for kind in kinds - known
    )
