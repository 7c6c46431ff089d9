"""`runner.Supervisor` does what TensorFlow's does with the same arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.support.parity import assert_parity, initialized_to
from tests.support.session_events import Events, Plays, fails

PLAYS = Plays()
play = PLAYS.add


@pytest.fixture(autouse=True, scope="module")
def _graph_mode() -> Iterator[None]:
    """As a program written for the Supervisor begins: its services know no eager execution."""
    tf.disable_eager_execution()
    yield
    tf.reset_default_graph()  # The one that the threads had.
    tf.enable_eager_execution()


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


@play("30 steps", "[0, 1, 2]")
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

    with tf.Graph().as_default():
        element = tf.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
        supervisor, elements = api.Supervisor(), []
        with supervisor.managed_session() as session:
            while not supervisor.should_stop():
                elements.append(int(session.run(element)))
        events.append(str(elements))


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


@pytest.mark.parametrize("name", PLAYS)
def test_both_do_the_same(name: str, tmp_path: Path) -> None:
    theirs, ours, expected = PLAYS.perform(name, tmp_path)
    assert ours == theirs
    assert [event for event in ours if event in expected] == expected


# Arguments of the constructor, from the model; the default graph is the model's.
Arguments = Callable[["Supervised", Path], dict[str, Any]]
ARGUMENTS: dict[str, Arguments] = {
    "none": lambda model, folder: {},
    "a directory": lambda model, folder: {"logdir": str(folder)},
    "another name of checkpoints": lambda model, folder: {
        "logdir": str(folder),
        "checkpoint_basename": "other.ckpt",
    },
    "nothing saved": lambda model, folder: {
        "logdir": str(folder),
        "save_model_secs": 0,
        "save_summaries_secs": 0,
    },
    "no summaries": lambda model, folder: {"logdir": str(folder), "summary_op": None},
    "no step": lambda model, folder: {"logdir": str(folder), "global_step": None},
    "no saver": lambda model, folder: {"logdir": str(folder), "saver": None},
    "no init": lambda model, folder: {"init_op": None},
    "no ready_op": lambda model, folder: {"ready_op": None},
    "a ready_op that is never ready": lambda model, folder: {"ready_op": tf.constant(["weight"])},
    "an init_fn": lambda model, folder: {
        "init_fn": lambda session: model.weight.load(7.0, session)
    },
    "an init_fn that fails": lambda model, folder: {"init_fn": lambda session: 1 // 0},
    "an init with a feed": lambda model, folder: {
        "init_op": initialized_to(model.weight, 9.0),
        "init_feed_dict": {},
    },
    "a local init": lambda model, folder: {"local_init_op": model.weight.assign(8.0).op},
    "its own manager": lambda model, folder: {"session_manager": tf.train.SessionManager()},
    "a manager that is a string": lambda model, folder: {"session_manager": "manager"},
    "another graph": lambda model, folder: {"graph": tf.Graph()},
    "a graph that is a string": lambda model, folder: {"graph": "graph"},
    "a directory that is a number": lambda model, folder: {"logdir": 3},
    "a writer": lambda model, folder: {
        "summary_writer": tf.summary.FileWriter(str(folder / "summaries"))
    },
    "no writer": lambda model, folder: {"logdir": str(folder), "summary_writer": None},
    "a worker": lambda model, folder: {"is_chief": False},
    "an unknown argument": lambda model, folder: {"directory": str(folder)},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        model = Supervised()
        supervisor = api.Supervisor(
            **{"recovery_wait_secs": 0.01, **ARGUMENTS[name](model, folder)}
        )
        if not supervisor.is_chief:
            return supervisor.save_path
        # The services' threads would save when they come to it.
        session = supervisor.prepare_or_wait_for_session(start_standard_services=False)
        values = session.run([model.step, model.weight])
        if supervisor.saver and supervisor.save_path:
            supervisor.saver.save(session, supervisor.save_path, global_step=1)
        if supervisor.summary_writer:
            supervisor.summary_computed(session, session.run(tf.get_collection("summaries")[0]), 1)
        supervisor.stop()
        session.close()
        return [values, supervisor.should_stop()]

    assert_parity(case, tmp_path)


# Calls of a supervisor without a directory.
CALLS: dict[str, Callable[[Any, tf.Session], Any]] = {
    "summary_computed": lambda supervisor, session: supervisor.summary_computed(session, b""),
    "standard services": lambda supervisor, session: supervisor.start_standard_services(session),
    "queue runners": lambda supervisor, session: supervisor.start_queue_runners(session),
    "queue runners of a list": lambda supervisor, session: supervisor.start_queue_runners(
        session, ["runner"]
    ),
    "a loop that fails": lambda supervisor, session: (
        supervisor.loop(None, lambda: 1 // 0),
        supervisor.wait_for_stop(),
        supervisor.stop(),
    ),
    "a loop of no function": lambda supervisor, session: (
        supervisor.loop(None, 3),
        supervisor.wait_for_stop(),
        supervisor.stop(),
    ),
    "stop twice": lambda supervisor, session: (supervisor.stop(), supervisor.stop()),
    "request_stop": lambda supervisor, session: (
        supervisor.request_stop(),
        supervisor.should_stop(),
    ),
    "request_stop by an error": lambda supervisor, session: (
        supervisor.request_stop(ValueError("mine")),
        supervisor.stop(),
    ),
    "stop_on_exception": lambda supervisor, session: _fail_in(supervisor),
    "a context": lambda supervisor, session: type(supervisor.session_manager).__name__[-7:],
}


def _fail_in(supervisor: Any) -> Any:
    with supervisor.stop_on_exception():
        raise ValueError("mine")


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        Supervised()
        supervisor = api.Supervisor()
        with supervisor.prepare_or_wait_for_session() as session:
            try:
                return str(CALLS[name](supervisor, session))
            finally:
                events.append(f"stopped {supervisor.should_stop()}")
                supervisor.coord.clear_stop()

    assert_parity(case, tmp_path)
