"""How a CachedSession gets to its results; what they are is for tests/conformance to say."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import example, given
from hypothesis import strategies as st

import runner
from runner.internals.tensorflow import Step, prepare_step
from runner.session import cached_session
from runner.session.cached_session import CachedSession, cached
from runner.session.fetches import Feed, FetchPlan, append_key, plan_feeds

Point = namedtuple("Point", ["x", "y"])


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
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of fetched tensors of every kind of step that a session prepares."""
    fetched: list[int] = []

    def recording(*args: Any, **kwargs: Any) -> Step:
        fetched.append(len(args[2]))
        return prepare_step(*args, **kwargs)

    monkeypatch.setattr(cached_session, "prepare_step", recording)
    return fetched


# Steps run in TensorFlow's pool, without a trial of the caller's thread.
IN_POOL = tf.ConfigProto(inter_op_parallelism_threads=1)


with tf.Graph().as_default() as GRAPH:
    TENSORS = [tf.constant(float(number)) for number in range(3)]
LEAVES = st.sampled_from([*TENSORS, TENSORS[0].op])
KEYS = st.sampled_from([1, 1.0, True, "x", "y", (1, 2)])
STRUCTURES = st.recursive(
    LEAVES,
    lambda part: st.one_of(
        st.lists(part, max_size=3),
        st.lists(part, max_size=3).map(tuple),
        st.tuples(part, part).map(lambda parts: Point(*parts)),
        st.dictionaries(KEYS, part, max_size=2),
        st.dictionaries(KEYS, part, max_size=2).map(OrderedDict),
    ),
    max_leaves=5,
)


def shape(structure: Any) -> Any:
    """Returns a key of a structure, equal for structures that fetch the same."""
    if isinstance(structure, dict):
        parts = [(type(name), name, shape(part)) for name, part in structure.items()]
        return type(structure), parts
    if isinstance(structure, (list, tuple)):
        return type(structure), [shape(part) for part in structure]
    return structure.name, isinstance(structure, tf.Operation)


def key(structure: Any) -> list[Any]:
    found: list[Any] = []
    assert append_key(structure, found)
    return found


A, B, _ = TENSORS


@example([[A], B], [[A, B]])
@example([A, [], B], [[], A, B])
@example((A, B), Point(A, B))
@example({"x": A, "y": B}, {"y": A, "x": B})
@example({"x": A}, OrderedDict(x=A))
@example({1: A}, {True: A})
@example({1: A}, {1.0: A})
@given(STRUCTURES, STRUCTURES)
def test_structures_have_one_key_exactly_if_they_fetch_the_same(first: Any, second: Any) -> None:
    assert (key(first) == key(second)) is (shape(first) == shape(second))
    plan = FetchPlan(first, GRAPH)
    if plan.build is not None:
        assert len(set(map(id, plan.tensors.values()))) == len(plan.tensors)
        assert len(set(plan.operations.values())) == len(plan.operations)


def test_equal_structures_of_the_same_tensors_share_a_callable(
    graph: tf.Graph, counted: Counted, prepared: list[int]
) -> None:
    value = tf.placeholder(tf.float32, [], name="value")
    double, triple = value * 2.0, value * 3.0
    with CachedSession(config=IN_POOL) as session:
        for number in range(20):
            results = session.run({"a": [double], "b": (triple,)}, {value: number})
            assert results == {"a": [2 * number], "b": (3 * number,)}
            assert session.run([double, triple], {value: number}) == [2 * number, 3 * number]
    assert len(prepared) == 2
    assert counted.calls == 0


def test_an_array_of_the_right_dtype_is_passed_on_as_it_is(graph: tf.Graph) -> None:
    value = np.ones([3, 2], np.float32)
    assert Feed(tf.placeholder(tf.float32, [None, 2])).convert(value) is value


def test_feed_keys_other_than_plain_tensors_of_the_graph_are_left(graph: tf.Graph) -> None:
    plain = tf.placeholder(tf.float32, [])
    reference = tf.get_variable("reference", [], use_resource=False)
    resource = tf.get_variable("resource", [], use_resource=True)
    for key in (reference, graph.as_graph_element(reference), resource.handle, TENSORS[0]):
        assert plan_feeds([plain, key], graph) is None
    assert plan_feeds([plain], graph) is not None


def test_more_kinds_of_steps_than_fit_start_over(
    graph: tf.Graph, counted: Counted, prepared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_session, "CAPACITY", 4)
    tensors = [tf.constant(float(number)) for number in range(10)]
    with CachedSession(config=IN_POOL) as session:
        for _ in range(2):
            for number, tensor in enumerate(tensors):
                assert session.run({"it": tensor}) == {"it": number}
                assert session.run(tensors[:2]) == [0.0, 1.0]
    assert prepared.count(1) == 20, "ten other kinds exceed the capacity"
    assert prepared.count(2) < 10, "a kind in constant use is prepared again, but rarely"
    assert counted.calls == 0


def test_elements_are_kept_alive_so_that_none_takes_the_identity_of_another(
    graph: tf.Graph,
) -> None:
    kept = weakref.WeakSet[Any]()
    with CachedSession() as session:
        for number in range(3):
            fetches = [tf.get_variable(f"v{number}", initializer=float(number))]
            kept.add(fetches[0])
            session.run(fetches[0].initializer)
            assert session.run(fetches) == [number]
            fetches.clear()
        graph.clear_collection(tf.GraphKeys.GLOBAL_VARIABLES)
        graph.clear_collection(tf.GraphKeys.TRAINABLE_VARIABLES)
        gc.collect()
        assert len(kept) == 3


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


def test_a_remote_session_is_left_to_tensorflow(
    counted: Counted, prepared: list[int], graph: tf.Graph
) -> None:
    server = tf.train.Server.create_local_server()
    value = tf.constant(1.0)
    with CachedSession(server.target) as session:
        for _ in range(3):
            assert session.run(value) == 1.0
    assert prepared == []
    assert counted.calls == 3


def test_a_callable_that_cannot_be_made_is_left_to_tensorflow(graph: tf.Graph) -> None:
    with tf.device("/job:elsewhere"):
        nowhere = tf.constant(1.0) + tf.placeholder(tf.float32, [])
    with CachedSession() as session:
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="/job:elsewhere"):
                session.run(nowhere)


def test_only_plain_sessions_become_cached_ones(graph: tf.Graph, counted: Counted) -> None:
    class Own(tf.Session):
        pass

    number = tf.constant(2.0)
    with tf.Session() as session, Own() as own:
        for _ in range(2):
            assert cached(session) is session
            assert type(session) is CachedSession
        assert session.run(number) == 2.0
        assert counted.calls == 0
        assert cached(own) is own
        assert type(own) is Own


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
    # In one process a worker has no chief to wait for but itself: without variables it is ready.
    with tf.Graph().as_default():
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


POOL = tf.ConfigProto().session_inter_op_thread_pool.add()


@pytest.mark.parametrize(
    ("config", "tried"),
    [
        ({}, True),
        ({"inter_op_parallelism_threads": 1}, False),
        ({"inter_op_parallelism_threads": 2}, False),
        ({"inter_op_parallelism_threads": -1}, False),
        ({"device_count": {"CPU": 2}}, False),
        ({"session_inter_op_thread_pool": [POOL]}, False),
    ],
    ids=str,
)
def test_configured_threads_are_obeyed(
    graph: tf.Graph, config: dict[str, Any], tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[object] = []

    def without_trial(prepare: Callable[..., Step], needs_pool: Callable[[], bool]) -> Step:
        trials.append(prepare)
        return prepare(inline=False)

    monkeypatch.setattr(cached_session, "ShortStep", without_trial)
    value = tf.constant(1.0)
    with CachedSession(config=tf.ConfigProto(**config)) as session:
        assert session.run(value) == 1.0
    assert bool(trials) is tried
