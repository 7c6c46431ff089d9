"""A Session that prepares each kind of step once, where Session.run does so at every call."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

# CallableOptions is the argument of _make_callable_from_options; no public name leads to it.
from tensorflow.core.protobuf import config_pb2

from runner.session.bounded_cache import BoundedCache
from runner.session.caller_thread import Step, ThreadTrial
from runner.session.fetches import (
    Build,
    Feed,
    FetchPlan,
    append_key,
    convert_all,
    plan_feeds,
    plan_fetches,
)

# As many kinds of steps get a callable; each holds the executor of its part of the graph.
CAPACITY = 256
# How often a kind of step beyond these is run before it takes the place of another.
PATIENCE = 100
_FEEDS = object()


@dataclass
class _Prepared:
    """A kind of step; `kept` are the elements whose identity is part of its key."""

    call: Step
    build: Build
    feeds: tuple[Feed, ...]
    kept: Any
    used: int = 0


class CachedSession(tf.compat.v1.Session):
    """`tf.compat.v1.Session` whose `run` does the same in about a fourth of the time.

    For every structure of fetches and set of feed keys it makes one callable and keeps it. Run
    options, structures of other classes than lists, tuples, named tuples and dictionaries, fetches
    by name, composite tensors, feeds of anything but plain tensors and values that need an error
    message are left to `tf.compat.v1.Session.run`, and so are all runs of a remote session, whose
    loss it reports in the way that `MonitoredSession` recovers from.

    Where `config.inter_op_parallelism_threads` is 0, the default, a tiny step is run in the
    caller's thread if that is measured to be faster (`runner.session.caller_thread`); any other
    number is obeyed.

    Operations of the graph that are changed after they were run (with private methods of
    TensorFlow) are not noticed.
    """

    def __init__(
        self,
        target: str = "",
        graph: tf.Graph | None = None,
        config: tf.compat.v1.ConfigProto | None = None,
    ) -> None:
        """Takes the arguments of `tf.compat.v1.Session`."""
        super().__init__(target, graph, config)
        self._start_caching()

    def run(
        self,
        fetches: Any,
        feed_dict: Any = None,
        options: tf.compat.v1.RunOptions | None = None,
        run_metadata: tf.compat.v1.RunMetadata | None = None,
    ) -> Any:
        """Runs a step as `tf.compat.v1.Session.run` does: same arguments, values and errors."""
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
        prepared.used = self._prepared.now()
        if feed_dict:
            arrays = convert_all(prepared.feeds, feed_dict.values())
            if arrays is None:
                return super().run(fetches, feed_dict, options, run_metadata)
            # _do_call gives errors the operation and the message that those of Session.run have.
            values = self._do_call(prepared.call, *arrays)
        else:
            values = self._do_call(prepared.call)
        if run_metadata is not None:
            run_metadata.Clear()  # Without options there is nothing to tell.
        return prepared.build(values)

    def close(self) -> None:
        """Closes the session."""
        # The callables refer to the session: without them it is freed as soon as it is not used.
        self._prepared.clear()
        self._open = False
        super().close()

    def _start_caching(self) -> None:
        self._prepared: BoundedCache[_Prepared] = BoundedCache(CAPACITY, PATIENCE)
        # A cost model is told in the metadata of a run, which callables are not given.
        config = self._config
        self._open = not self.sess_str and not config.graph_options.build_cost_model
        self._choose_threads = config.inter_op_parallelism_threads == 0 and not len(
            config.session_inter_op_thread_pool
        )

    def _prepare(self, fetches: Any, feed_dict: Any, key: tuple[Any, ...]) -> _Prepared | None:
        if not self._open:
            return None
        plan = plan_fetches(fetches, self.graph)
        feeds = plan_feeds(feed_dict or (), self.graph)
        if plan is None or feeds is None:
            return None
        # Session.run returns what is fed where that is fetched too.
        if {feed.tensor.name for feed in feeds} & {tensor.name for tensor in plan.tensors}:
            return None
        kept = (plan.leaves, tuple(feed_dict or ()))

        def build() -> _Prepared:
            prepared = _Prepared(self._step(plan, feeds, inline=False), plan.build, feeds, kept)
            if self._choose_threads:
                prepared.call = ThreadTrial(
                    prepared.call,
                    lambda: self._step(plan, feeds, inline=True),
                    plan.tensors + plan.operations,
                    _settles(prepared),
                )
            return prepared

        try:
            return self._prepared.admit(key, build)
        except tf.errors.OpError:
            return None  # Session.run meets the same error, or can do what a callable cannot.

    def _step(self, plan: FetchPlan, feeds: tuple[Feed, ...], inline: bool) -> Step:
        options = config_pb2.CallableOptions(
            feed=[feed.tensor.name for feed in feeds],
            fetch=[tensor.name for tensor in plan.tensors],
            target=[operation.name for operation in plan.operations],
        )
        options.run_options.inter_op_thread_pool = -1 if inline else 0
        # The public make_callable passes feeds on to Session.run, reports errors without the
        # operation, and knows no options that are set once.
        step: Callable[..., list[Any]] = self._make_callable_from_options(options)
        return step


def _settles(prepared: _Prepared) -> Callable[[Step], None]:
    """Returns what sets the call, without a cycle that would outlive a closed session."""
    reference = weakref.ref(prepared)

    def settle(step: Step) -> None:
        owner = reference()
        if owner is not None:
            owner.call = step

    return settle


def cached(session: tf.compat.v1.Session) -> tf.compat.v1.Session:
    """Makes a `CachedSession` of a plain session, which stays the same object.

    TensorFlow's SessionManager creates its sessions itself and cannot be told of which class.
    Sessions of other classes are returned as they are.
    """
    if type(session) is tf.compat.v1.Session:
        CachedSession._start_caching(session)
        session.__class__ = CachedSession
    return session
