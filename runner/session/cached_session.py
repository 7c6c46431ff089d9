"""A Session that prepares each kind of step once, where Session.run does so at every call.

This saves 150 us of a step: a fifth of a step of 1 ms, and two thirds of a step of a tiny graph.

A tiny step may then run in the caller's thread: handing it over to TensorFlow's pool of threads
takes 40 to 100 us on two cores, most of such a step. With this choice the step of
`benchmarks.monitored_step` (4 hooks, a tiny graph) takes 0.26 to 0.40 of a bare `Session.run`,
without it 0.57 to 0.86; steps of 1 ms and more are not affected.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from runner.internals.tensorflow import Step, prepare_step, session_config
from runner.session.fetches import Build, Feed, append_key, convert_all, plan_feeds, plan_fetches

# Kinds of steps in memory, each with the executor of its part of the graph. A new one replaces the
# least recently used.
CAPACITY = 256
_FEEDS = object()


@dataclass
class _Prepared:
    """A kind of step.

    Attributes:
      step: runs it.
      build: makes the result of its values.
      feeds: convert what is fed.
      elements: the elements whose identities are in its key; alive, they keep these to themselves.
      used: grows with every use.
    """

    step: Step
    build: Build
    feeds: tuple[Feed, ...]
    elements: Any
    used: int = 0


class CachedSession(tf.compat.v1.Session):
    """`tf.compat.v1.Session` with a `run` that prepares each kind of step once.

    A kind of step is a structure of fetches with a set of feed keys. Run options, structures other
    than lists, tuples, named tuples and dictionaries, fetches by name, composite tensors, feeds of
    anything but plain tensors, and values that need an error message are passed on to
    `tf.compat.v1.Session.run`. So are all runs of a remote session, whose loss is then reported in
    the way that `MonitoredSession` recovers from.

    Where `config.inter_op_parallelism_threads` is 0, the default, tiny steps run in the caller's
    thread if that is faster; any other number is obeyed.

    Changes to operations that have already run (by private methods of TensorFlow) are not noticed.
    """

    def __init__(
        self,
        target: str = "",
        graph: tf.Graph | None = None,
        config: tf.compat.v1.ConfigProto | None = None,
    ) -> None:
        super().__init__(target, graph, config)
        self._start_caching()

    def run(
        self,
        fetches: Any,
        feed_dict: Any = None,
        options: tf.compat.v1.RunOptions | None = None,
        run_metadata: tf.compat.v1.RunMetadata | None = None,
    ) -> Any:
        """Runs a step with the arguments, values and errors of `tf.compat.v1.Session.run`."""
        key: list[Any] = []
        if (options is not None and options.ByteSize()) or not append_key(fetches, key):
            return super().run(fetches, feed_dict, options, run_metadata)
        if feed_dict:
            if type(feed_dict) is not dict:
                return super().run(fetches, feed_dict, options, run_metadata)
            key.append(_FEEDS)
            key += map(id, feed_dict)
        prepared = self._prepared.get(tuple(key)) or self._prepare(fetches, feed_dict, tuple(key))
        if prepared is None:
            return super().run(fetches, feed_dict, options, run_metadata)
        prepared.used = next(self._uses)
        arrays = convert_all(prepared.feeds, feed_dict.values()) if feed_dict else ()
        if arrays is None:
            return super().run(fetches, feed_dict, options, run_metadata)
        values = prepared.step(*arrays)
        if run_metadata is not None:
            run_metadata.Clear()  # Without options, TensorFlow collects no metadata.
        return prepared.build(values)

    def close(self) -> None:
        """Closes the session."""
        # The steps refer to the session: without them it is freed once it is not used any more.
        self._prepared.clear()
        self._caches = False
        super().close()

    def _start_caching(self) -> None:
        self._prepared: dict[Hashable, _Prepared] = {}
        self._uses = itertools.count()
        self._lock = threading.Lock()
        self._pool_needed: tuple[int, bool] | None = None
        config = session_config(self)
        # A cost model is part of the metadata, which prepared steps do not give.
        self._caches = not self.sess_str and not config.graph_options.build_cost_model
        pools = config.session_inter_op_thread_pool
        self._choose_threads = config.inter_op_parallelism_threads == 0 and not pools

    def _prepare(self, fetches: Any, feed_dict: Any, key: Hashable) -> _Prepared | None:
        """Returns a new kind of step, or None for what `Session.run` has to do."""
        if not self._caches:
            return None
        plan = plan_fetches(fetches, self.graph)
        feeds = plan_feeds(feed_dict or (), self.graph)
        if plan is None or feeds is None:
            return None
        fed = [feed.tensor for feed in feeds]
        # Session.run returns what is fed where that is fetched too.
        if {tensor.name for tensor in fed} & {tensor.name for tensor in plan.tensors}:
            return None

        def prepare(inline: bool) -> Step:
            return prepare_step(self, fed, plan.tensors, plan.operations, inline=inline)

        with self._lock:
            if key in self._prepared:
                return self._prepared[key]
            try:
                step = (
                    ShortStep(prepare, self._needs_pool)
                    if self._choose_threads
                    else prepare(inline=False)
                )
            except tf.errors.OpError:
                return None  # Session.run meets the same error, or can do what this cannot.
            if len(self._prepared) >= CAPACITY:
                del self._prepared[min(self._prepared, key=lambda key: self._prepared[key].used)]
            elements = (plan.leaves, tuple(feed_dict or ()))
            prepared = _Prepared(step, plan.build, feeds, elements, used=next(self._uses))
            self._prepared[key] = prepared
            return prepared

    def _needs_pool(self) -> bool:
        version = self.graph.version
        if self._pool_needed is None or self._pool_needed[0] != version:
            self._pool_needed = (version, needs_pool(self.graph))
        return self._pool_needed[1]


def cached(session: tf.compat.v1.Session) -> tf.compat.v1.Session:
    """Makes a `CachedSession` of a plain session, which stays the same object.

    TensorFlow's SessionManager always creates plain sessions. Sessions of other classes stay as
    they are.
    """
    if type(session) is tf.compat.v1.Session:
        CachedSession._start_caching(session)
        session.__class__ = CachedSession
    return session


# Longer steps gain nothing that can be measured, and may lose by one thread.
LONGEST_S = 0.5e-3
# Calls timed each way. The shortest of them counts: a busy machine lengthens the others, and the
# first one includes the optimization of the graph.
SAMPLES = 20
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
