"""`runner.MonitoredSession` and `SingularMonitoredSession` do what TensorFlow's do."""

from __future__ import annotations

import collections
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import runner
from runner.cluster.local import free_addresses
from tests.support import session_cases as cases
from tests.support.forked import Forks
from tests.support.parity import Case, Counting, assert_parity
from tests.support.session_cases import given
from tests.support.session_events import Events, Hook, Model, Plays, fails, raising

# Arguments of both, and of one of them.
ARGUMENTS: dict[str, dict[str, dict[str, Callable[[Any], Any]]]] = {
    "MonitoredSession": {
        **cases.HOOKS,
        "no creator": {"session_creator": given(None)},
        "a chief": {"session_creator": lambda api: api.ChiefSessionCreator()},
        "TensorFlow's chief": {"session_creator": lambda api: tf.train.ChiefSessionCreator()},
        "a creator that is a string": {"session_creator": given("creator")},
        "a creator that is a session": {"session_creator": lambda api: tf.Session()},
    },
    "SingularMonitoredSession": {
        **cases.HOOKS,
        "a scaffold": {"scaffold": lambda api: api.Scaffold()},
        "TensorFlow's scaffold": {"scaffold": lambda api: tf.train.Scaffold()},
        "a scaffold that is a string": {"scaffold": given("scaffold")},
        "a configuration": {"config": given(tf.ConfigProto(allow_soft_placement=True))},
        "a target that is not there": {"master": given("nowhere://a:1")},
        "a directory that is not there": {"checkpoint_dir": given("/nowhere")},
        "a directory that is a number": {"checkpoint_dir": given(3)},
        "a checkpoint that is not there": {"checkpoint_filename_with_path": given("/nowhere/a")},
        "both a directory and a checkpoint": {
            "checkpoint_dir": given("/nowhere"),
            "checkpoint_filename_with_path": given("/nowhere/a"),
        },
    },
}
# What both do, by case.
CASES: dict[str, Callable[[str], Case]] = {
    **{
        f"{stage} fails by {error}": partial(cases.failing, stage=stage, error=error)
        for stage in cases.STAGES
        for error in cases.ERRORS
    },
    **{f"a hook asks for {name}": partial(cases.requesting, name=name) for name in cases.REQUESTS},
    **{f"call: {name}": partial(cases.running, name=name) for name in cases.RUNS},
    **{f"{error} in the block": partial(cases.ending, error=error) for error in cases.ERRORS},
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, named in ARGUMENTS.items() for name in named]
)
def test_arguments(kind: str, name: str, tmp_path: Path) -> None:
    assert_parity(cases.constructed(kind, ARGUMENTS[kind][name]), tmp_path)


@pytest.mark.parametrize("kind", ARGUMENTS)
@pytest.mark.parametrize("name", CASES)
def test_what_both_do(name: str, kind: str, tmp_path: Path) -> None:
    assert_parity(CASES[name](kind), tmp_path)


# What a singular session restores, from a folder and the checkpoint in it.
SOURCES: dict[str, Callable[[Path, str], dict[str, Any]]] = {
    "a directory": lambda folder, saved: {"checkpoint_dir": str(folder)},
    "a checkpoint": lambda folder, saved: {"checkpoint_filename_with_path": saved},
    "both": lambda folder, saved: {
        "checkpoint_dir": str(folder),
        "checkpoint_filename_with_path": saved,
    },
    "a checkpoint of another name": lambda folder, saved: {
        "checkpoint_filename_with_path": f"{saved}-2"
    },
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_a_singular_session_restores(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        with tf.Graph().as_default():
            model, saver = Counting(), tf.train.Saver()
            with api.SingularMonitoredSession() as session:
                session.run(model.train_op)
                saved = saver.save(session.raw_session(), str(folder / "model.ckpt-1"))
        model = Counting()
        session = api.SingularMonitoredSession(**SOURCES[name](folder, saved))
        assert isinstance(session.raw_session(), tf.Session)
        return model.run(session, steps=1)

    assert_parity(case, tmp_path)


# Plays of several calls.

Point = collections.namedtuple("Point", ["x", "y"])
PLAYS = Plays()
play = PLAYS.add
LOST = (tf.errors.AbortedError, tf.errors.UnavailableError)
QUIET = {"log_step_count_steps": None, "save_summaries_steps": None}


# Monitored sessions: hooks, fetches and feeds.


@play("init_op", "init_fn", "ready_for_local_init_op", "local_init_op", "ready_op", "None and 11")
def fresh_start(api: Any, events: Events, path: Path) -> None:
    model = Model(api, events)
    with api.MonitoredTrainingSession(
        checkpoint_dir=str(path),
        scaffold=model.scaffold,
        hooks=[events.hook("a", fetches=model.sum), events.hook("b")],
        chief_only_hooks=[events.hook("chief")],
        save_checkpoint_steps=1,
        **QUIET,
    ) as session:
        assert isinstance(session, tf.train.MonitoredSession)
        nothing, total = session.run([model.train_op, model.sum])
        events.append(f"{nothing} and {total:g}")
        events.append(f"{session.run(model.sum, {model.feed: 2.0}):g}")
    assert session.should_stop()


@play("init_op", "init_fn", "step 1", "restore model.ckpt-1", "step 2")
def resumption(api: Any, events: Events, path: Path) -> None:
    for _ in range(2):
        with tf.Graph().as_default():
            model = Model(api, events)
            with api.MonitoredTrainingSession(
                checkpoint_dir=str(path), scaffold=model.scaffold, hooks=[events.hook()], **QUIET
            ) as session:
                session.run(model.train_op)
                events.append(f"step {session.run(model.step)}")


@play("x is 6", "x is 6", "x is 6")
def fetches_and_feeds_of_hooks(api: Any, events: Events, path: Path) -> None:
    model = Model(api, events)
    hooks = [
        events.hook("none"),
        events.hook("feeds", feed={model.feed: 5.0}),
        events.hook("fetches", fetches={"sum": model.sum, "more": [model.after, model.train_op]}),
        events.hook("point", fetches=Point(model.sum, (model.other,))),
    ]
    with api.MonitoredSession(api.ChiefSessionCreator(model.scaffold), hooks) as session:
        for _ in range(3):
            events.append(str(session.run(model.sum)))
            fetched = session.run({"x": model.sum}, feed_dict={model.other: 1.0})
            events.append(f"x is {fetched['x']:g}")
        fails(events, partial(session.run, model.sum, {model.feed: 2.0}))


@play("without hooks 13.0", "14.0", "left by StopIteration")
def step_functions(api: Any, events: Events, path: Path) -> None:
    model = Model(api, events)

    def step_fn(step_context: Any) -> Any:
        raw = step_context.session.run(model.sum, {model.feed: 3.0})
        if "14.0" not in events:
            events.append(f"without hooks {raw}")
        return step_context.run_with_hooks(model.sum, feed_dict={model.feed: 4.0})

    def stopping(step_context: Any) -> Any:
        step_context.request_stop()

    with api.MonitoredSession(hooks=[events.hook(fetches=model.step)]) as session:
        events.append(str(session.run_step_fn(step_fn)))
        fails(events, partial(session.run_step_fn, lambda wrong: None))
        while not session.should_stop():
            session.run_step_fn(step_fn)
            session.run_step_fn(stopping)
    events.append("left by StopIteration")


# Monitored sessions: how they end.


def _preempted(api: Any, events: Events, path: Path, error: type[tf.errors.OpError]) -> None:
    model = Model(api, events)
    failures = [error(None, None, "gone")]

    def fail(context: Any, values: Any) -> None:
        if values.results == 3 and failures:
            raise failures.pop()

    hook = events.hook("failing", fetches=model.after, after=fail)
    creator = api.ChiefSessionCreator(model.scaffold, checkpoint_dir=str(path))
    with api.MonitoredSession(creator, [hook, tf.train.StopAtStepHook(5)]) as session:
        while not session.should_stop():
            session.run(model.train_op)
    assert len(set(map(id, hook.sessions))) == 2
    with tf.Graph().as_default():  # A singular session does not recover.
        model = Model(api, events)
        hook = events.hook(after=lambda *args: raising(error(None, None, "gone for good")))
        session = api.SingularMonitoredSession([hook], model.scaffold)
        fails(events, partial(session.run, model.train_op))
        session.close()


for lost in LOST:
    play("init_op", "init_op", "failing: end, stopped False", "init_op", name=lost.__name__)(
        partial(_preempted, error=lost)
    )


@play("stopped True", "closed True", "finalized False")
def after_the_end(api: Any, events: Events, path: Path) -> None:
    model = Model(api, events)
    hook = events.hook(after=lambda context, values: context.request_stop())
    session = api.MonitoredSession(hooks=[hook])
    session.run(model.train_op)
    events.append(f"stopped {session.should_stop()}")
    fails(events, partial(session.run, model.train_op))
    session.close()
    events.append(f"closed {session.should_stop()}")
    fails(events, session.close)
    events.append(f"finalized {tf.get_default_graph().finalized}")


# Coordinators and queue runners.

EXAMPLES = 64


class Pipeline:
    """Numbers read by queue runners, shuffled and batched, and a step over them."""

    def __init__(self, epochs: int | None) -> None:
        number = tf.train.range_input_producer(EXAMPLES, epochs, seed=1).dequeue()
        queue = tf.RandomShuffleQueue(EXAMPLES, 8, [tf.int32], [[]], seed=1)
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(number)] * 2))
        self.batch = queue.dequeue_many(8)
        with tf.control_dependencies([self.batch]):
            self.train_op = tf.assign_add(tf.train.get_or_create_global_step(), 1)


@play("40 steps, each example 5 times", "threads ended")
def input_pipeline_to_its_end(api: Any, events: Events, path: Path) -> None:
    before = threading.active_count()
    pipeline = Pipeline(epochs=5)
    seen: list[np.ndarray[Any, Any]] = []
    with api.MonitoredTrainingSession() as session:
        assert threading.active_count() > before
        while not session.should_stop():
            seen.append(session.run([pipeline.batch, pipeline.train_op])[0])
    # The end of input came out of the run and ended the session without an error.
    (times,) = set(np.unique(np.concatenate(seen), return_counts=True)[1])
    events.append(f"{len(seen)} steps, each example {times} times")
    if threading.active_count() == before:
        events.append("threads ended")


@play("coordinator True True", "threads ended")
def queue_runners_of_a_lost_session(api: Any, events: Events, path: Path) -> None:
    before = threading.active_count()
    pipeline = Pipeline(epochs=None)
    failures = [tf.errors.AbortedError(None, None, "gone")]
    coordinators: list[tf.train.Coordinator] = []

    class Fails(tf.train.SessionRunHook):
        def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
            coordinators.append(coord)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if failures:
                raise failures.pop()

    with api.MonitoredSession(hooks=[Fails(), tf.train.StopAtStepHook(5)]) as session:
        while not session.should_stop():
            session.run(pipeline.train_op)
    events.append(f"coordinator {coordinators[1].should_stop()} {coordinators[1].joined}")
    if threading.active_count() == before:
        events.append("threads ended")


@pytest.mark.parametrize("name", PLAYS)
def test_both_do_the_same(name: str, tmp_path: Path) -> None:
    theirs, ours, expected = PLAYS.perform(name, tmp_path)
    assert ours == theirs
    assert [event for event in ours if event in expected] == expected


# Servers that die.


def serve(forks: Forks, address: str) -> subprocess.Popen[str]:
    """Starts a process that serves, and waits until it does."""
    command = [sys.executable, "-m", "tests.support.server", address]
    process = forks.start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == "serves\n"
    return process


def open_session(api: Any, address: str, directory: Path, hook: Hook) -> tuple[Any, Any]:
    """Returns a session that saves at every second step, and its train op."""
    weight = tf.get_variable("weight", initializer=100.0)
    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies([weight.assign_add(1.0)]):
        train_op = step.assign_add(1)
    with tf.control_dependencies([train_op]):
        values = (step.read_value(), weight.read_value())
    session = api.MonitoredTrainingSession(
        master=f"grpc://{address}",
        checkpoint_dir=str(directory),
        hooks=[hook],
        save_checkpoint_steps=2,
        save_summaries_steps=None,
        log_step_count_steps=None,
    )
    return session, values


def test_a_session_outlives_its_server(forks: Forks, tmp_path: Path) -> None:
    (address,) = free_addresses(1)
    sides: dict[Any, tuple[tf.Graph, Hook, Any, Any]] = {}
    fetched: dict[Any, list[Any]] = {}
    with serve(forks, address) as first:
        for api in (tf.train, runner):
            with tf.Graph().as_default() as graph:
                hook = Hook([], "hook")
                session, values = open_session(api, address, tmp_path / api.__name__, hook)
                sides[api] = (graph, hook, session, values)
                fetched[api] = [session.run(values) for _ in range(3)]
        first.kill()
    with serve(forks, address) as second:
        for api, (graph, hook, session, values) in sides.items():
            with graph.as_default():
                fetched[api] += [session.run(values) for _ in range(2)]
                session.close()
            assert len(hook.sessions) == 2
        second.kill()
    # The third step was not saved: it is taken again.
    assert fetched[tf.train] == [(1, 101.0), (2, 102.0), (3, 103.0), (3, 103.0), (4, 104.0)]
    assert fetched[runner] == fetched[tf.train]
