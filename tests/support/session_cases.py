"""Cases for the monitored sessions that recover and those that do not: hooks, runs, steps, ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow.compat.v1 as tf

from tests.support.parity import Case, Counting
from tests.support.session_events import Events

# The name of the class of sessions.
Kind: TypeAlias = str
Args = tf.train.SessionRunArgs
STAGES = ("begin", "after_create_session", "before_run", "after_run", "end")
ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("mine"),
    "StopIteration": StopIteration,
    "OutOfRangeError": lambda: tf.errors.OutOfRangeError(None, None, "no more"),
    "AbortedError": lambda: tf.errors.AbortedError(None, None, "gone"),
    "UnavailableError": lambda: tf.errors.UnavailableError(None, None, "gone"),
    "CancelledError": lambda: tf.errors.CancelledError(None, None, "gone"),
    "InvalidArgumentError": lambda: tf.errors.InvalidArgumentError(None, None, "wrong"),
}


class Failing(tf.train.SessionRunHook):
    """Raises an error at a stage, the first time that it comes there."""

    def __init__(self, stage: str, error: BaseException) -> None:
        self._errors = [error]

        def fail(*args: Any) -> None:
            if self._errors:
                raise self._errors.pop()

        setattr(self, stage, fail)


def failing(kind: Kind, stage: str, error: str) -> Case:
    """Returns the case of a hook between two others that fails at a stage."""

    def case(api: Any, events: Events, folder: Any) -> Any:
        model = Counting()
        hooks = [events.hook("first"), Failing(stage, ERRORS[error]()), events.hook("last")]
        session = getattr(api, kind)(hooks=hooks)
        try:
            return model.run(session)
        finally:
            events.append(f"stopped {session.should_stop()}")

    return case


# What the `before_run` of two hooks returns, from the model.
REQUESTS: dict[str, Callable[[Counting], list[Any]]] = {
    "nothing": lambda model: [None, None],
    "a tensor": lambda model: [Args(model.product), None],
    "an operation": lambda model: [Args(model.train_op.op), Args([])],
    "a structure": lambda model: [Args({"a": [model.product, model.step]}), Args((model.weight,))],
    "a name": lambda model: [Args("product:0"), None],
    "an unknown name": lambda model: [Args("unknown:0"), None],
    "a number": lambda model: [Args(3), None],
    "fetches without SessionRunArgs": lambda model: [model.product, None],
    "a feed": lambda model: [Args(model.product, {model.feed: 4.0}), None],
    "one feed twice": lambda model: [Args(None, {model.feed: 4.0}), Args(None, {model.feed: 5.0})],
    "a feed of another dtype": lambda model: [Args(None, {model.feed: "four"}), None],
    "a feed of another shape": lambda model: [Args(None, {model.feed: [1.0, 2.0]}), None],
    "options": lambda model: [
        Args(model.product, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)),
        Args(None, options=tf.RunOptions(timeout_in_ms=60_000, output_partition_graphs=True)),
    ],
    "options that are a string": lambda model: [Args(None, options="fast"), None],
}


def requesting(kind: Kind, name: str) -> Case:
    """Returns the case of hooks that ask for something."""

    def case(api: Any, events: Events, folder: Any) -> Any:
        model = Counting()

        class Asks(tf.train.SessionRunHook):
            def __init__(self, request: Any) -> None:
                self.request = request

            def before_run(self, run_context: Any) -> Any:
                return self.request

            def after_run(self, run_context: Any, run_values: Any) -> None:
                events.append(f"results {run_values.results}")
                events.append(f"traced {bool(run_values.run_metadata.step_stats.dev_stats)}")
                events.append(f"partitions {len(run_values.run_metadata.partition_graphs)}")

        hooks = [Asks(request) for request in REQUESTS[name](model)]
        return model.run(getattr(api, kind)(hooks=hooks), steps=2)

    return case


# Calls of an open session.
RUNS: dict[str, Callable[[Any, Counting], Any]] = {
    "a tensor": lambda session, model: session.run(model.product),
    "an operation": lambda session, model: session.run(model.train_op.op),
    "a structure": lambda session, model: session.run({"a": (model.product, [model.step])}),
    "by keywords": lambda session, model: session.run(
        fetches=model.product, feed_dict={model.feed: 2.0}, options=None, run_metadata=None
    ),
    "metadata": lambda session, model: (
        lambda metadata: [
            session.run(
                model.product,
                options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE),
                run_metadata=metadata,
            ),
            bool(metadata.step_stats.dev_stats),
        ]
    )(tf.RunMetadata()),
    "nothing": lambda session, model: session.run([]),
    "None": lambda session, model: session.run(None),
    "no fetches": lambda session, model: session.run(),
    "a number": lambda session, model: session.run(3),
    "an unknown name": lambda session, model: session.run("unknown:0"),
    "of another graph": lambda session, model: session.run(_foreign()),
    "an unknown feed": lambda session, model: session.run(model.product, {"unknown:0": 1.0}),
    "a feed that is no dict": lambda session, model: session.run(model.product, [model.feed]),
    "a wrong feed": lambda session, model: session.run(model.product, {model.feed: "x"}),
    "wrong options": lambda session, model: session.run(model.product, options="fast"),
    "an unknown argument": lambda session, model: session.run(model.product, feeds={}),
    "the graph": lambda session, model: session.graph is tf.get_default_graph(),
    "should_stop": lambda session, model: session.should_stop(),
    "an unknown attribute": lambda session, model: session.target,
    "closed": lambda session, model: (session.close(), session.run(model.product)),
    "closed twice": lambda session, model: (session.close(), session.close()),
    "stopped when closed": lambda session, model: (session.close(), session.should_stop())[1],
    "entered twice": lambda session, model: session.__enter__() is session,
    "a step": lambda session, model: session.run_step_fn(
        lambda step_context: step_context.session.run(model.product, {model.feed: 3.0})
    ),
    "a step with hooks": lambda session, model: session.run_step_fn(
        lambda step_context: step_context.run_with_hooks(model.product, feed_dict={model.feed: 3.0})
    ),
    "two runs in a step": lambda session, model: session.run_step_fn(
        lambda step_context: [step_context.run_with_hooks(model.train_op) for _ in range(2)]
    ),
    "a step that asks to stop": lambda session, model: session.run_step_fn(
        lambda step_context: step_context.request_stop()
    ),
    "a step that fails": lambda session, model: session.run_step_fn(lambda step_context: 1 // 0),
    "a step of another argument": lambda session, model: session.run_step_fn(lambda context: None),
    "a step of no argument": lambda session, model: session.run_step_fn(lambda: None),
    "a step of two arguments": lambda session, model: session.run_step_fn(
        lambda step_context, more: None
    ),
    "a step that is no function": lambda session, model: session.run_step_fn(model.train_op),
    "a step of a closed session": lambda session, model: (
        session.close(),
        session.run_step_fn(lambda step_context: step_context.session.run(model.product)),
    ),
    "a variable loaded": lambda session, model: session.run_step_fn(
        lambda step_context: model.weight.load(9.0, step_context.session)
    ),
}


def _foreign() -> tf.Tensor:
    with tf.Graph().as_default():
        return tf.constant(1.0)


def running(kind: Kind, name: str) -> Case:
    """Returns the case of a call, and of a step after it."""

    def case(api: Any, events: Events, folder: Any) -> Any:
        model = Counting()
        session = getattr(api, kind)(hooks=[events.hook("hook")])
        try:
            result = RUNS[name](session, model)
            events.append(f"then {session.run(model.train_op)}")
            return result
        finally:
            events.append(f"stopped {session.should_stop()}")

    return case


def ending(kind: Kind, error: str) -> Case:
    """Returns the case of an error in the block of a session."""

    def case(api: Any, events: Events, folder: Any) -> Any:
        model = Counting()
        with getattr(api, kind)(hooks=[events.hook("hook")]) as session:
            session.run(model.train_op)
            raise ERRORS[error]()

    return case


def constructed(kind: Kind, arguments: dict[str, Callable[[Any], Any]]) -> Case:
    """Returns the case of a session with arguments, from the API."""

    def case(api: Any, events: Events, folder: Any) -> Any:
        model = Counting()
        return model.run(
            getattr(api, kind)(**{name: value(api) for name, value in arguments.items()})
        )

    return case


def given(value: Any) -> Callable[[Any], Any]:
    """Returns an argument that is the same for both."""
    return lambda api: value


HOOKS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "no arguments": {},
    "no hooks": {"hooks": given(None)},
    "an empty list of hooks": {"hooks": given([])},
    "a tuple of hooks": {"hooks": lambda api: (tf.train.StopAtStepHook(2),)},
    "hooks that are strings": {"hooks": given(["hook"])},
    "hooks that are no list": {"hooks": given(3)},
    "a hook alone": {"hooks": lambda api: tf.train.StopAtStepHook(2)},
    "a grace period": {"stop_grace_period_secs": given(1)},
    "a grace period that is a string": {"stop_grace_period_secs": given("1")},
    "an unknown argument": {"hook": given(None)},
}
