"""runner.Supervisor does what TensorFlow's does, and restores several checkpoints besides."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

import runner
from runner.errors import CheckpointError, ConfigError

BOTH = pytest.mark.parametrize("api", [tf.train, runner], ids=["tensorflow", "runner"])


@pytest.fixture(autouse=True, scope="module")
def _graph_mode() -> Iterator[None]:
    """As a program written for the Supervisor begins: its services know no eager execution."""
    tf.disable_eager_execution()
    yield
    tf.reset_default_graph()  # The one that the threads had.
    tf.enable_eager_execution()


class Model:
    def __init__(self) -> None:
        self.step = tf.train.get_or_create_global_step()
        self.cnn = tf.get_variable("cnn", initializer=1.0)
        self.head = tf.get_variable("head", initializer=1.0)
        self.train_op = tf.assign_add(self.step, 1).op
        tf.summary.scalar("cnn", self.cnn)


def events(directory: Path) -> list[Any]:
    files = sorted(directory.glob("events*"))
    return [event for file in files for event in tf.train.summary_iterator(str(file))]


@BOTH
def test_a_managed_session_saves_and_resumes(api: Any, tmp_path: Path) -> None:
    for expected in (3, 6):
        with tf.Graph().as_default() as graph:
            model = Model()
            supervisor = api.Supervisor(logdir=str(tmp_path), save_model_secs=0)
            assert isinstance(supervisor, tf.train.Supervisor)
            assert graph.finalized
            with supervisor.managed_session() as session:
                for _ in range(3):
                    assert not supervisor.should_stop()
                    session.run(model.train_op)
                assert session.run(model.step) == expected
                supervisor.saver.save(
                    session, supervisor.save_path, global_step=supervisor.global_step
                )
            assert supervisor.should_stop()
            with pytest.raises(RuntimeError, match="closed"):
                session.run(model.step)
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-6")
    assert (tmp_path / "graph.pbtxt").is_file()


@BOTH
def test_init_op_feeds_and_init_fn(api: Any) -> None:
    with tf.Graph().as_default():
        start = tf.placeholder(tf.float32, [])
        weight = tf.get_variable("weight", initializer=start)
        double = tf.assign(weight, weight * 2.0)
        supervisor = api.Supervisor(
            init_op=tf.global_variables_initializer(),
            init_feed_dict={start: 4.0},
            init_fn=lambda session: session.run(double),
        )
        session = supervisor.prepare_or_wait_for_session()
        assert session.run(weight) == 8.0
        assert supervisor.init_feed_dict == {start: 4.0}
        supervisor.stop()
        session.close()


@BOTH
def test_services_and_summaries(api: Any, tmp_path: Path) -> None:
    with tf.Graph().as_default():
        model = Model()
        merged = tf.summary.merge_all()
        supervisor = api.Supervisor(
            logdir=str(tmp_path), summary_op=None, save_summaries_secs=3600, save_model_secs=3600
        )
        session = supervisor.prepare_or_wait_for_session(start_standard_services=False)
        session.run(model.train_op)
        threads = supervisor.start_standard_services(session)
        kinds = sorted(type(thread).__name__ for thread in threads)
        assert kinds == ["SVStepCounterThread", "SVTimerCheckpointThread"]
        supervisor.summary_computed(session, session.run(merged))
        supervisor.summary_computed(session, session.run(merged), global_step=7)
        supervisor.stop()
        assert not any(thread.is_alive() for thread in threads)
        session.close()
    noted = [(event.step, value.tag) for event in events(tmp_path) for value in event.summary.value]
    steps = [step for step, tag in noted if tag.startswith("cnn")]
    assert steps == [1, 7]
    with tf.Graph().as_default():
        without = api.Supervisor()
        with without.managed_session() as session:
            assert without.start_standard_services(session) is None
            with pytest.raises(RuntimeError, match="requires a summary writer"):
                without.summary_computed(session, b"")


@BOTH
def test_loops(api: Any) -> None:
    with tf.Graph().as_default():
        model = Model()
        supervisor = api.Supervisor()
        enough = threading.Event()
        with supervisor.managed_session() as session:

            def count(limit: int, session: tf.Session) -> None:
                session.run(model.train_op)
                if session.run(model.step) >= limit:
                    enough.set()
                    supervisor.request_stop()

            thread = supervisor.loop(None, count, args=(30,), kwargs={"session": session})
            assert enough.wait(20)
            supervisor.wait_for_stop()
            thread.join(20)
            assert not thread.is_alive()


@BOTH
def test_errors_of_loops_and_of_the_block_are_raised(api: Any) -> None:
    def fail() -> Any:
        raise ZeroDivisionError("in a loop")

    with tf.Graph().as_default():
        supervisor = api.Supervisor()

        def loop() -> None:
            with supervisor.managed_session():
                supervisor.loop(None, fail)
                supervisor.wait_for_stop()

        with pytest.raises(ZeroDivisionError, match="in a loop"):
            loop()
    with tf.Graph().as_default():
        supervisor = api.Supervisor()
        with pytest.raises(KeyError, match="mine"), supervisor.managed_session():
            raise KeyError("mine")
    with tf.Graph().as_default():
        supervisor = api.Supervisor()
        session = supervisor.prepare_or_wait_for_session()
        with supervisor.stop_on_exception():
            fail()
        assert supervisor.should_stop()
        with pytest.raises(ZeroDivisionError, match="in a loop"):
            supervisor.stop()
        session.close()


@BOTH
def test_the_end_of_input_is_an_orderly_end(api: Any) -> None:
    with tf.Graph().as_default():
        element = tf.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
        supervisor = api.Supervisor()
        found = []
        with supervisor.managed_session() as session:
            while not supervisor.should_stop():
                found.append(int(session.run(element)))
        assert found == [0, 1, 2]


@BOTH
def test_a_worker_waits_for_its_chief(api: Any) -> None:
    server = tf.train.Server.create_local_server()
    with tf.Graph().as_default():
        with tf.device("/job:localhost/replica:0/task:0/cpu:0"):
            model = Model()
        worker = api.Supervisor(is_chief=False, recovery_wait_secs=0.01)
        assert not worker.is_chief
        with pytest.raises(tf.errors.DeadlineExceededError):
            worker.prepare_or_wait_for_session(server.target, max_wait_secs=0)
        with pytest.raises(RuntimeError, match="Only chief"):
            worker.start_standard_services(None)
    with tf.Graph().as_default():
        with tf.device("/job:localhost/replica:0/task:0/cpu:0"):
            model = Model()
        chief = api.Supervisor(graph=tf.get_default_graph())
        with chief.managed_session(server.target) as session:
            session.run(model.train_op)
            with tf.Graph().as_default():
                with tf.device("/job:localhost/replica:0/task:0/cpu:0"):
                    model = Model()
                worker = api.Supervisor(is_chief=False, recovery_wait_secs=0.01)
                waited = worker.prepare_or_wait_for_session(server.target, max_wait_secs=20)
                assert waited.run(model.step) == 1
                worker.stop()
                waited.close()


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Directories whose checkpoints hold cnn = 3 and head = 5."""
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in (("cnn", 3.0), ("head", 5.0)):
            variable = tf.get_variable(name, initializer=value)
            session.run(variable.initializer)
            tf.train.Saver([variable]).save(session, str(tmp_path / name / "model.ckpt"))
    return [str(tmp_path / name) for name in ("cnn", "head")]


def pretrained(model: Model) -> list[tf.train.Scaffold]:
    parts = (model.cnn, model.head)
    return [tf.train.Scaffold(saver=tf.train.Saver([part])) for part in parts]


def test_several_checkpoints_are_restored_and_an_own_one_beats_them(
    sources: list[str], tmp_path: Path
) -> None:
    logdir = str(tmp_path / "own")
    for expected in ((3.0, 5.0), (30.0, 5.0)):
        with tf.Graph().as_default():
            model = Model()
            change = tf.assign(model.cnn, 30.0)
            supervisor = runner.Supervisor(
                logdir=logdir,
                save_model_secs=0,  # The service saves at once, perhaps after the save below.
                pretrained_checkpoint_dirs=sources,
                pretrained_scaffolds=pretrained(model),
            )
            with supervisor.managed_session() as session:
                assert session.run((model.cnn, model.head)) == expected
                assert session.run(model.step) == 0
                session.run(change)
                supervisor.saver.save(session, supervisor.save_path)


def test_scaffolds_restore_in_the_graph_that_is_given(sources: list[str]) -> None:
    with tf.Graph().as_default() as graph:
        model = Model()
        scaffolds = pretrained(model)
    supervisor = runner.Supervisor(
        graph, pretrained_checkpoint_dirs=[None, sources[1]], pretrained_scaffolds=scaffolds
    )
    with graph.as_default(), supervisor.managed_session() as session:
        assert session.run([model.cnn, model.head]) == [1.0, 5.0]


def test_our_session_manager_serves_tensorflows_supervisor(sources: list[str]) -> None:
    with tf.Graph().as_default() as graph:
        model = Model()
        scaffolds = pretrained(model)
        manager = runner.SessionManager(
            graph=graph,
            ready_op=tf.report_uninitialized_variables(),
            checkpoint_dirs=sources,
            scaffolds=scaffolds,
        )
        supervisor = tf.train.Supervisor(session_manager=manager)
        assert supervisor.session_manager is manager
        with supervisor.managed_session() as session:
            assert session.run([model.cnn, model.head]) == [3.0, 5.0]


def test_sources_that_cannot_be(sources: list[str], tmp_path: Path) -> None:
    with tf.Graph().as_default():
        model = Model()
        with pytest.raises(ConfigError, match="1 scaffolds and 2 checkpoint directories"):
            runner.Supervisor(
                pretrained_checkpoint_dirs=sources, pretrained_scaffolds=pretrained(model)[:1]
            )
        with pytest.raises(ConfigError, match="a session manager and pretrained scaffolds"):
            runner.Supervisor(
                session_manager=runner.SessionManager(),
                pretrained_checkpoint_dirs=sources,
                pretrained_scaffolds=pretrained(model),
            )
        supervisor = runner.Supervisor(
            pretrained_checkpoint_dirs=[sources[0], str(tmp_path / "nowhere")],
            pretrained_scaffolds=pretrained(model),
        )
        with pytest.raises(CheckpointError, match="nowhere"), supervisor.managed_session():
            pass


def test_the_session_is_a_fast_one() -> None:
    with tf.Graph().as_default():
        supervisor = runner.Supervisor()
        with supervisor.managed_session() as session:
            assert isinstance(session, runner.CachedSession)
