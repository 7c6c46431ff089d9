"""How a CachedSession gets to its results; what they are is for tests/conformance to say."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import runner
from runner.session import cached_session
from runner.session.cached_session import CachedSession, cached
from runner.session.caller_thread import SAMPLES, ShortStep


class Counted:
    """How often TensorFlow's Session.run was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        run = tf.Session.run

        def counting(session: tf.Session, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return run(session, *args, **kwargs)

        monkeypatch.setattr(tf.Session, "run", counting)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def test_structures_built_anew_of_the_same_tensors_share_a_callable(
    graph: tf.Graph, counted: Counted
) -> None:
    value = tf.placeholder(tf.float32, [], name="value")
    double, triple = value * 2.0, value * 3.0
    with CachedSession() as session:
        for number in range(20):
            found = session.run({"a": [double], "b": (triple,)}, {value: number})
            assert found == {"a": [2 * number], "b": (3 * number,)}
            assert session.run([double, triple], {value: number}) == [2 * number, 3 * number]
        assert len(session._prepared) == 2
    assert counted.calls == 0


def test_the_least_recently_used_kind_of_step_makes_room(
    graph: tf.Graph, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_session, "CAPACITY", 8)
    tensors = [tf.constant(float(number)) for number in range(40)]
    with CachedSession() as session:
        step = None
        for number, tensor in enumerate(tensors):
            assert session.run({"it": tensor}) == {"it": number}
            assert session.run(tensors[:2]) == [0.0, 1.0]
            (kept,) = [each for each in session._prepared.values() if len(each.kept[0]) == 2]
            assert step in (None, kept)
            step = kept
        assert len(session._prepared) == 8
    assert counted.calls == 0


def test_elements_are_kept_alive_so_that_none_takes_the_identity_of_another(
    graph: tf.Graph,
) -> None:
    kept = weakref.WeakSet[Any]()
    with CachedSession() as session:
        for number in range(5):
            fetches = [tf.get_variable(f"v{number}", initializer=float(number))]
            kept.add(fetches[0])
            session.run(fetches[0].initializer)
            assert session.run(fetches) == [number]
            fetches.clear()
        graph.clear_collection(tf.GraphKeys.GLOBAL_VARIABLES)
        graph.clear_collection(tf.GraphKeys.TRAINABLE_VARIABLES)
        gc.collect()
        assert len(kept) == 5


def test_a_closed_session_is_freed_without_the_garbage_collector(graph: tf.Graph) -> None:
    session = CachedSession()
    value = tf.constant(1.0)
    for _ in range(3):
        session.run(value)
    gc.disable()
    try:
        session.close()
        gone = weakref.ref(session)
        del session
        assert gone() is None
    finally:
        gc.enable()


def test_whether_the_pool_is_needed_is_found_anew_when_the_graph_has_grown(graph: tf.Graph) -> None:
    with CachedSession() as session:
        tf.constant(1.0)
        assert not session._needs_pool()
        tf.FIFOQueue(1, tf.int32)
        assert session._needs_pool()


@pytest.mark.parametrize(("threads", "tried"), [(0, True), (1, False), (2, False), (-1, False)])
def test_a_number_of_threads_that_is_given_is_obeyed(
    graph: tf.Graph, threads: int, tried: bool
) -> None:
    value = tf.constant(1.0)
    config = tf.ConfigProto(inter_op_parallelism_threads=threads)
    with CachedSession(config=config) as session:
        assert session.run(value) == 1.0
        (prepared,) = session._prepared.values()
        assert isinstance(prepared.step, ShortStep) is tried


def test_a_step_gives_the_same_in_either_thread(graph: tf.Graph) -> None:
    tf.set_random_seed(1)
    weights = tf.get_variable("weights", [4, 4])
    noise = tf.random.normal([4, 4], seed=2)
    train = tf.assign_add(weights, tf.matmul(weights, noise) * 0.01)
    results = []
    for threads in (0, 2):
        config = tf.ConfigProto(inter_op_parallelism_threads=threads)
        with CachedSession(config=config) as session:
            session.run(tf.global_variables_initializer())
            results.append(np.array([session.run(train) for _ in range(3 * SAMPLES)]))
    np.testing.assert_array_equal(results[0], results[1])


def test_a_remote_session_is_left_to_tensorflow(counted: Counted, graph: tf.Graph) -> None:
    server = tf.train.Server.create_local_server()
    value = tf.constant(1.0)
    with CachedSession(server.target) as session:
        for _ in range(3):
            assert session.run(value) == 1.0
        assert len(session._prepared) == 0
    assert counted.calls == 3


def test_a_callable_that_cannot_be_made_is_left_to_tensorflow(graph: tf.Graph) -> None:
    with tf.device("/job:elsewhere"):
        nowhere = tf.constant(1.0) + tf.placeholder(tf.float32, [])
    with CachedSession() as session:
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="/job:elsewhere"):
                session.run(nowhere)
        assert len(session._prepared) == 0


def test_a_plain_session_becomes_a_cached_one(graph: tf.Graph, counted: Counted) -> None:
    variable = tf.get_variable("variable", initializer=2.0)
    session = tf.Session()
    session.run(variable.initializer)
    assert cached(session) is session
    assert type(session) is CachedSession
    assert cached(session) is session
    before = counted.calls
    assert session.run(variable) == 2.0
    assert counted.calls == before
    session.close()


def test_sessions_of_other_classes_are_left_as_they_are(graph: tf.Graph) -> None:
    class Own(tf.Session):
        pass

    with Own() as session:
        assert cached(session) is session
        assert type(session) is Own


def test_creators_give_cached_sessions(graph: tf.Graph) -> None:
    tf.train.get_or_create_global_step()
    made: list[tf.Session] = []

    class Creator(tf.train.SessionCreator):
        def create_session(self) -> tf.Session:
            made.append(tf.train.ChiefSessionCreator().create_session())
            return made[-1]

    with runner.MonitoredSession(Creator()) as session:
        session.run(tf.train.get_global_step())
        assert type(made[0]) is CachedSession
    session = runner.ChiefSessionCreator().create_session()
    assert type(session) is CachedSession
    # In one process a worker has no chief to wait for but itself: without variables it is ready.
    graph_of_worker = tf.Graph()
    with graph_of_worker.as_default():
        assert type(runner.WorkerSessionCreator().create_session()) is CachedSession


def test_no_run_goes_the_long_way_unnoticed(graph: tf.Graph, counted: Counted) -> None:
    """The runs of a training loop are all of the fast kind."""
    step = tf.train.get_or_create_global_step()
    loss = tf.get_variable("loss", initializer=1.0) * 2.0
    batch = tf.placeholder(tf.float32, [None, 2])
    train_op = tf.assign_add(step, 1).op
    hooks = [
        tf.train.StopAtStepHook(10),
        tf.train.NanTensorHook(loss),
        tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=5),
    ]
    with runner.MonitoredTrainingSession(hooks=hooks) as session:
        before = counted.calls
        while not session.should_stop():
            session.run([train_op, loss], {batch: np.ones([3, 2])})
        assert counted.calls == before
