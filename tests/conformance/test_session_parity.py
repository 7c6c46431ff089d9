"""runner's sessions do what TensorFlow's do: each play is performed with both, and compared.

A play notes what happens: the calls of its hooks, results, errors. What it notes must be the same
on both sides, and contain what is expected of TensorFlow.
"""

from __future__ import annotations

import collections
import shutil
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import runner
from tests.tiny.forked import Forks
from tests.tiny.session_events import Events, Hook, Model

Play = Callable[[Any, Events, Path], None]
Point = collections.namedtuple("Point", ["x", "y"])
PLAYS: dict[str, tuple[Play, tuple[str, ...]]] = {}
LOST = (tf.errors.AbortedError, tf.errors.UnavailableError)
QUIET = {"log_step_count_steps": None, "save_summaries_steps": None}


def play(*expected: str, name: str = "") -> Callable[[Play], Play]:
    """Adds a play, and what it must note."""

    def add(function: Play) -> Play:
        PLAYS[name or function.__name__] = (function, expected)
        return function

    return add


@pytest.fixture(autouse=True, scope="module")
def _graph_mode() -> Iterator[None]:
    """As a program written for the Supervisor begins: its services know no eager execution."""
    tf.disable_eager_execution()
    yield
    tf.reset_default_graph()  # The one that the threads had.
    tf.enable_eager_execution()


@pytest.mark.parametrize("name", PLAYS)
def test_both_do_the_same(name: str, tmp_path: Path) -> None:
    function, expected = PLAYS[name]
    noted = []
    for api in (tf.train, runner):
        events = Events()
        with tf.Graph().as_default():
            function(api, events, tmp_path / "files")
        noted.append(list(events))
        shutil.rmtree(tmp_path / "files", ignore_errors=True)
    theirs, ours = noted
    assert ours == theirs
    assert [event for event in ours if event in expected] == list(expected)


def fails(events: Events, call: Callable[[], object]) -> None:
    """Notes the error of a call, its message and its innermost function."""
    with pytest.raises(BaseException) as raised:  # noqa: PT011 (it is noted)
        call()
    last = traceback.extract_tb(raised.value.__traceback__)[-1].name
    events.append(f"{type(raised.value).__name__}: {str(raised.value).splitlines()[0]} ({last})")
    operation = getattr(raised.value, "op", None)
    if operation is not None:
        events.append(f"of {operation.name}: {'Detected at node' in str(raised.value)}")


def raising(error: BaseException) -> Any:
    raise error


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
            found = session.run({"x": model.sum}, feed_dict={model.other: 1.0})
            events.append(f"x is {found['x']:g}")
        fails(events, partial(session.run, model.sum, {model.feed: 2.0}))
    with tf.Graph().as_default():
        model = Model(api, events)
        twice = [events.hook(name, feed={model.feed: 1.0}) for name in "ab"]
        with api.MonitoredSession(api.ChiefSessionCreator(model.scaffold), twice) as session:
            fails(events, partial(session.run, model.sum))
    assert "Same tensor is fed by two hooks" in " ".join(events)


@play("trace, 60000 ms, same metadata, steps")
def run_options_of_hooks(api: Any, events: Events, path: Path) -> None:
    model = Model(api, events)
    traces = events.hook("a", options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE))
    limits = events.hook("b", options=tf.RunOptions(timeout_in_ms=60_000))
    with api.MonitoredSession(api.ChiefSessionCreator(model.scaffold), [traces, limits]) as session:
        metadata = tf.RunMetadata()
        for _ in range(2):
            session.run(model.sum, run_metadata=metadata)
    for values in limits.values:
        assert values.options.trace_level == tf.RunOptions.FULL_TRACE
        assert values.options.timeout_in_ms == 60_000
        assert values.run_metadata is metadata
    assert metadata.step_stats.dev_stats
    events.append("trace, 60000 ms, same metadata, steps")


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


def _end_of_input(api: Any, events: Events, path: Path, kind: str, error: BaseException) -> None:
    model = Model(api, events)
    with getattr(api, kind)(hooks=[events.hook()]) as session:
        session.run(model.train_op)
        raising(error)
    events.append(f"closed {session.should_stop()}")


def _error_in_the_block(api: Any, events: Events, path: Path, kind: str) -> None:
    model = Model(api, events)

    def train() -> None:
        with getattr(api, kind)(hooks=[events.hook()]) as session:
            session.run(model.train_op)
            raising(ZeroDivisionError("mine"))

    fails(events, train)
    assert not any(": end," in event for event in events)


for lost in LOST:
    play("init_op", "init_op", "failing: end, stopped False", "init_op", name=lost.__name__)(
        partial(_preempted, error=lost)
    )
for kind in ("MonitoredSession", "SingularMonitoredSession"):
    play("ZeroDivisionError: mine (raising)", name=f"error in {kind}")(
        partial(_error_in_the_block, kind=kind)
    )
    for end in (StopIteration(), tf.errors.OutOfRangeError(None, None, "no more")):
        play("hook: end, stopped False", "closed True", name=f"{type(end).__name__} in {kind}")(
            partial(_end_of_input, kind=kind, error=end)
        )


@play("of checked: True")
def error_of_an_operation(api: Any, events: Events, path: Path) -> None:
    value = tf.placeholder(tf.float32, [], name="value")
    checked = tf.debugging.check_numerics(value, "not finite", name="checked")
    with api.MonitoredSession() as session:
        for number in (1.0, 2.0):
            assert session.run(checked, {value: number}) == number
        fails(events, partial(session.run, checked, {value: float("nan")}))


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


@play("raw 1", "restored 1")
def raw_session_and_named_checkpoint(api: Any, events: Events, path: Path) -> None:
    model = Model(api, events)
    saver = tf.train.Saver()
    with api.SingularMonitoredSession(checkpoint_dir=str(path)) as session:
        session.run(model.train_op)
        raw = session.raw_session()
        assert isinstance(raw, tf.Session)
        events.append(f"raw {raw.run(model.step)}")
        path.mkdir(exist_ok=True)
        saved = saver.save(raw, str(path / "x"))
    make = partial(api.SingularMonitoredSession, checkpoint_filename_with_path=saved)
    with tf.Graph().as_default():
        Model(api, Events())
        fails(events, partial(make, checkpoint_dir=str(path)))
    with tf.Graph().as_default():
        model = Model(api, Events())
        with make() as session:
            events.append(f"restored {session.run(model.step)}")


@play("chief 3.0", "worker 3.0", "worker 3.0", "worker 3.0")
def workers_wait_for_their_chief(api: Any, events: Events, path: Path) -> None:
    server = tf.train.Server.create_local_server()
    join = partial(api.MonitoredTrainingSession, server.target, is_chief=False)
    with tf.Graph().as_default():
        tf.get_variable("weights", initializer=3.0)
        with pytest.raises(tf.errors.DeadlineExceededError):
            join(scaffold=api.Scaffold(), max_wait_secs=0)
    with tf.Graph().as_default():
        weights = tf.get_variable("weights", initializer=3.0)
        with api.MonitoredTrainingSession(server.target) as chief:
            events.append(f"chief {chief.run(weights)}")
            noted = Events()
            with join(hooks=[noted.hook()], chief_only_hooks=[noted.hook("chief's")]) as worker:
                for _ in range(3):
                    events.append(f"worker {worker.run(weights)}")
            events += [" ".join(event.split(" ")[:2]) for event in noted]


# Coordinators and queue runners.

EXAMPLES = 64


class Pipeline:
    """Numbers read by queue runners, shuffled and batched; a step fits a line to them."""

    def __init__(self, epochs: int | None) -> None:
        number = tf.train.range_input_producer(EXAMPLES, epochs, seed=1).dequeue()
        example = tf.cast(number, tf.float32) / EXAMPLES
        queue = tf.RandomShuffleQueue(EXAMPLES, 8, [tf.float32, tf.float32], [[], []], seed=1)
        enqueue = queue.enqueue([example, 3.0 * example + 1.0])
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, [enqueue] * 2))
        self.x, self.y = queue.dequeue_many(8)
        self.slope = tf.get_variable("slope", initializer=0.0)
        self.offset = tf.get_variable("offset", initializer=0.0)
        self.loss = tf.reduce_mean((self.slope * self.x + self.offset - self.y) ** 2)
        self.step = tf.train.get_or_create_global_step()
        self.train_op = tf.train.GradientDescentOptimizer(0.5).minimize(self.loss, self.step)


@play("160 steps, each example 20 times, loss below 0.05", "threads ended")
def input_pipeline_to_its_end(api: Any, events: Events, path: Path) -> None:
    before = threading.active_count()
    pipeline = Pipeline(epochs=20)
    seen: list[np.ndarray[Any, Any]] = []
    with api.MonitoredTrainingSession() as session:
        assert threading.active_count() > before
        while not session.should_stop():
            x, loss, _ = session.run([pipeline.x, pipeline.loss, pipeline.train_op])
            seen.append(x)
    # The end of input came out of the run and ended the session without an error.
    (times,) = set(np.unique(np.concatenate(seen), return_counts=True)[1])
    assert loss < 0.05
    events.append(f"{len(seen)} steps, each example {times} times, loss below 0.05")
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


# Supervisors.


class Supervised:
    def __init__(self) -> None:
        self.step = tf.train.get_or_create_global_step()
        self.weight = tf.get_variable("weight", initializer=1.0)
        self.train_op = tf.assign_add(self.step, 1).op
        tf.summary.scalar("weight", self.weight)


@play("finalized True", "step 3", "model.ckpt-3", "finalized True", "step 6", "model.ckpt-6")
def managed_session_saves_and_resumes(api: Any, events: Events, path: Path) -> None:
    for _ in range(2):
        with tf.Graph().as_default() as graph:
            model = Supervised()
            supervisor = api.Supervisor(logdir=str(path), save_model_secs=0)
            assert isinstance(supervisor, tf.train.Supervisor)
            events.append(f"finalized {graph.finalized}")
            with supervisor.managed_session() as session:
                for _ in range(3):
                    assert not supervisor.should_stop()
                    session.run(model.train_op)
                events.append(f"step {session.run(model.step)}")
                supervisor.saver.save(
                    session, supervisor.save_path, global_step=supervisor.global_step
                )
            assert supervisor.should_stop()
            fails(events, partial(session.run, model.step))
        events.append(Path(tf.train.latest_checkpoint(str(path))).name)
    assert (path / "graph.pbtxt").is_file()


@play("weight 8.0")
def init_op_feeds_and_init_fn(api: Any, events: Events, path: Path) -> None:
    start = tf.placeholder(tf.float32, [])
    weight = tf.get_variable("weight", initializer=start)
    double = tf.assign(weight, weight * 2.0)
    supervisor = api.Supervisor(
        init_op=tf.global_variables_initializer(),
        init_feed_dict={start: 4.0},
        init_fn=lambda session: session.run(double),
    )
    session = supervisor.prepare_or_wait_for_session()
    events.append(f"weight {session.run(weight)}")
    assert supervisor.init_feed_dict == {start: 4.0}
    supervisor.stop()
    session.close()


@play("30 steps", "ZeroDivisionError: in a loop (raising)", "[0, 1, 2]")
def loops_and_how_they_end(api: Any, events: Events, path: Path) -> None:
    model = Supervised()
    supervisor = api.Supervisor()

    def count(limit: int, session: tf.Session) -> None:
        session.run(model.train_op)
        if session.run(model.step) >= limit:
            supervisor.request_stop()

    with supervisor.managed_session() as session:
        thread = supervisor.loop(None, count, args=(30,), kwargs={"session": session})
        supervisor.wait_for_stop()
        thread.join(20)
        events.append(f"{session.run(model.step)} steps")

    def loop_that_fails() -> None:
        supervisor = api.Supervisor()
        with supervisor.managed_session():
            supervisor.loop(None, raising, args=(ZeroDivisionError("in a loop"),))
            supervisor.wait_for_stop()

    with tf.Graph().as_default():
        fails(events, loop_that_fails)
    with tf.Graph().as_default():
        element = tf.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
        supervisor, found = api.Supervisor(), []
        with supervisor.managed_session() as session:
            while not supervisor.should_stop():
                found.append(int(session.run(element)))
        events.append(str(found))


@play("chief False", "step 1")
def supervised_worker_waits_for_its_chief(api: Any, events: Events, path: Path) -> None:
    server = tf.train.Server.create_local_server()

    def supervised(**arguments: Any) -> tuple[Supervised, Any]:
        with tf.device("/job:localhost/replica:0/task:0/cpu:0"):
            model = Supervised()
        return model, api.Supervisor(recovery_wait_secs=0.01, **arguments)

    with tf.Graph().as_default():
        _, worker = supervised(is_chief=False)
        events.append(f"chief {worker.is_chief}")
        with pytest.raises(tf.errors.DeadlineExceededError):
            worker.prepare_or_wait_for_session(server.target, max_wait_secs=0)
        fails(events, partial(worker.start_standard_services, None))
    with tf.Graph().as_default():
        model, chief = supervised(graph=tf.get_default_graph())
        with chief.managed_session(server.target) as session, tf.Graph().as_default():
            session.run(model.train_op)
            model, worker = supervised(is_chief=False)
            waited = worker.prepare_or_wait_for_session(server.target, max_wait_secs=20)
            events.append(f"step {waited.run(model.step)}")
            worker.stop()
            waited.close()


# Servers that die.


def serve(forks: Forks, address: str) -> subprocess.Popen[str]:
    """Starts a process that serves, and waits until it does."""
    command = [sys.executable, "-m", "tests.tiny.server", address]
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
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    sides: dict[Any, tuple[tf.Graph, Hook, Any, Any]] = {}
    found: dict[Any, list[Any]] = {}
    with serve(forks, address) as first:
        for api in (tf.train, runner):
            with tf.Graph().as_default() as graph:
                hook = Hook([], "hook")
                session, values = open_session(api, address, tmp_path / api.__name__, hook)
                sides[api] = (graph, hook, session, values)
                found[api] = [session.run(values) for _ in range(3)]
        first.kill()
    with serve(forks, address) as second:
        for api, (graph, hook, session, values) in sides.items():
            with graph.as_default():
                found[api] += [session.run(values) for _ in range(2)]
                session.close()
            assert len(hook.sessions) == 2
        second.kill()
    # The third step was not saved: it is taken again.
    assert found[tf.train] == [(1, 101.0), (2, 102.0), (3, 103.0), (3, 103.0), (4, 104.0)]
    assert found[runner] == found[tf.train]
