"""runner.Supervisor does what TensorFlow's does: each play is performed with both, and compared."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.tiny.session_events import Events, Plays, fails

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
