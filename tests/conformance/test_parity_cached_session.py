"""CachedSession.run gives what Session.run gives: values, their types, and errors.

For each case it is said, too, whether the step is prepared or left to Session.run.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import runner

Point = collections.namedtuple("Point", ["x", "y"])
Sessions = tuple[tf.Session, tf.Session]
KINDS = pytest.mark.parametrize("kind", [tf.Session, runner.CachedSession])


def outcome(call: Callable[[], Any]) -> Any:
    """Describes the result or the error of a call, with all types, so that it can be compared."""
    try:
        return describe(call())
    except tf.errors.OpError as error:
        name = error.op.name if error.op is not None else None
        return type(error), error.message, name, error.error_code, error.node_def
    except Exception as error:  # noqa: BLE001 (whatever it is, both must raise it)
        return type(error), str(error)


def describe(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value), [(type(key), key, describe(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [describe(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        # The bytes of a handle are an address; repr makes a NaN equal to itself.
        content = "" if value.dtype.names else repr(value.tolist())
        return type(value), value.dtype, value.shape, content
    if hasattr(value, "to_list"):
        return type(value), value.to_list()
    return type(value), value


class Model:
    """A graph with about everything that can be fetched and fed."""

    def __init__(self) -> None:
        self.vector = tf.placeholder(tf.float32, [None, 2], name="vector")
        self.scalar = tf.placeholder(tf.float32, [], name="scalar")
        self.byte = tf.placeholder(tf.uint8, [], name="byte")
        self.text = tf.placeholder(tf.string, [None], name="text")
        self.flag = tf.placeholder(tf.bool, [], name="flag")
        self.anything = tf.placeholder(tf.float64, name="anything")
        self.half = tf.placeholder(tf.bfloat16, [None], name="half")
        self.sparse = tf.sparse_placeholder(tf.float32, name="sparse")
        self.total = tf.reduce_sum(self.vector, name="total")
        self.doubled = tf.identity(self.scalar * 2.0, name="doubled")
        self.variable = tf.get_variable("variable", initializer=[1.0, 2.0], use_resource=True)
        self.reference = tf.get_variable("reference", initializer=[1.0, 2.0], use_resource=False)
        self.count = tf.get_variable("count", initializer=0, use_resource=True)
        self.increment = tf.assign_add(self.count, 1).op
        self.random = tf.random.uniform([2], seed=1)
        self.constant = tf.constant([1, 2, 3])
        self.strings = tf.constant(["a", "bb"])
        self.number = tf.constant(2.5)
        self.slices = tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]), tf.constant([4]))
        self.slices_only = tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))
        self.points = tf.sparse.SparseTensor([[0, 1]], [2.0], [2, 2])
        self.ragged = tf.ragged.constant([[1, 2], [3]])
        self.checked = tf.debugging.check_numerics(self.scalar, "not finite", name="checked")
        self.end = tf.data.make_one_shot_iterator(tf.data.Dataset.range(0)).get_next()
        self.handle = tf.get_session_handle(tf.constant([7.0]))
        self.same_text = tf.identity(self.text)
        self.same_byte = self.byte + tf.constant(1, tf.uint8)
        self.same_flag = tf.logical_not(self.flag)
        self.same_anything = tf.identity(self.anything)
        self.same_half = tf.identity(self.half)
        self.sparse_sum = tf.sparse.reduce_sum(self.sparse)
        self.fixed = tf.constant(1.0)
        tf.get_default_graph().prevent_feeding(self.fixed)
        with tf.Graph().as_default():
            self.foreign = tf.placeholder(tf.float32, [])
        self.hidden = tf.constant(1.0)
        tf.get_default_graph().prevent_fetching(self.hidden.op)
        self.init = tf.global_variables_initializer()


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with tf.Graph().as_default():
        tf.set_random_seed(3)
        yield Model()


@pytest.fixture
def sessions(model: Model) -> Iterator[Sessions]:
    with tf.Session() as plain, runner.CachedSession() as fast:
        for session in (plain, fast):
            session.run(model.init)
        yield plain, fast


def is_left(sessions: Sessions, case: Callable[[], tuple[Any, Any]]) -> bool:
    """Compares runs of fetches and feeds; returns whether ours are left to Session.run."""
    plain, fast = sessions
    expected = outcome(lambda: plain.run(*case()))
    with mock.patch.object(tf.Session, "run", autospec=True, side_effect=tf.Session.run) as run:
        for _ in range(3):
            assert outcome(lambda: fast.run(*case())) == expected
    return run.called


# Steps that are prepared, and those that are left to Session.run.
FETCHES: dict[str, Callable[[Model], Any]] = {
    "tensor": lambda m: m.constant,
    "string tensor": lambda m: m.strings,
    "operation": lambda m: m.constant.op,
    "resource variable": lambda m: m.variable,
    "reference variable": lambda m: m.reference,
    "variable's value": lambda m: m.variable.value(),
    "list": lambda m: [m.constant, m.number],
    "tuple": lambda m: (m.constant, m.constant.op, m.number),
    "repeated": lambda m: [m.constant, [m.constant, m.constant.op], m.constant.op],
    "dictionary": lambda m: {"a": m.constant, 2: m.number, True: m.strings},
    "ordered dictionary": lambda m: collections.OrderedDict([("b", m.constant), ("a", m.number)]),
    "named tuple": lambda m: Point(m.constant, [m.number]),
    "nested": lambda m: {"a": [m.constant, (m.number, {"b": [m.strings]})], "c": []},
    "empty parts": lambda m: [[], {}, (), m.number],
    "unfed placeholder": lambda m: m.total,
    "end of input": lambda m: [m.number, m.end],
}
LEFT_FETCHES: dict[str, Callable[[Model], Any]] = {
    "default dictionary": lambda m: collections.defaultdict(list, {"a": m.constant}),
    "nothing": lambda m: [],
    "nothing in a dictionary": lambda m: {},
    "sparse tensor": lambda m: {"a": m.points, "b": m.number},
    "indexed slices": lambda m: [m.slices, m.slices_only],
    "ragged tensor": lambda m: (m.ragged, m.number),
    "name of a tensor": lambda m: [m.constant.name, m.number],
    "name of an operation": lambda m: m.constant.op.name,
    "unknown name": lambda m: "unknown:0",
    "None": lambda m: None,
    "None among others": lambda m: [m.constant, None],
    "a number": lambda m: [m.constant, 3],
    "resource": lambda m: m.variable.handle,
    "of another graph": lambda m: [m.number, m.foreign],
    "not fetchable": lambda m: [m.number, m.hidden],
}


@pytest.mark.parametrize("name", [*FETCHES, *LEFT_FETCHES])
def test_fetches(model: Model, sessions: Sessions, name: str) -> None:
    case = {**FETCHES, **LEFT_FETCHES}[name]
    assert is_left(sessions, lambda: (case(model), None)) is (name in LEFT_FETCHES)


FEEDS: dict[str, Callable[[Model], tuple[Any, Any]]] = {
    "array": lambda m: (m.total, {m.vector: np.ones([3, 2], np.float32)}),
    "array of another dtype": lambda m: (m.total, {m.vector: np.ones([3, 2], np.int64)}),
    "array of another byte order": lambda m: (m.total, {m.vector: np.full([1, 2], 3.0, ">f4")}),
    "array of columns": lambda m: (m.total, {m.vector: np.ones([2, 3], np.float32).T}),
    "masked array": lambda m: (m.total, {m.vector: np.ma.masked_equal([[1.0, 2.0]], 2.0)}),
    "list": lambda m: (m.total, {m.vector: [[1, 2], [3, 4.5]]}),
    "python float": lambda m: ([m.doubled], {m.scalar: 0.5}),
    "python integer": lambda m: ([m.doubled], {m.scalar: 3}),
    "numpy scalar": lambda m: ([m.doubled], {m.scalar: np.float64(0.1)}),
    "bool for a float": lambda m: ([m.doubled], {m.scalar: True}),
    "integer that fits": lambda m: (m.same_byte, {m.byte: 200}),
    "float for an integer": lambda m: (m.same_byte, {m.byte: 1.75}),
    "array that wraps": lambda m: (m.same_byte, {m.byte: np.array(300)}),
    "bool": lambda m: (m.same_flag, {m.flag: False}),
    "strings": lambda m: (m.same_text, {m.text: ["a", b"b", "ä"]}),
    "array of strings": lambda m: (m.same_text, {m.text: np.array(["a", "bcd"])}),
    "bfloat16": lambda m: (m.same_half, {m.half: [1.0, 2.5]}),
    "any shape": lambda m: (m.same_anything, {m.anything: [[1, 2]]}),
    "several": lambda m: ((m.total, m.doubled), {m.vector: [[1, 2]], m.scalar: 1}),
    "unused": lambda m: (m.constant, {m.scalar: 1.0}),
    "tensor, not placeholder": lambda m: (m.doubled + 0, {m.doubled: 4.0}),
    "part of a sparse tensor": lambda m: (
        m.sparse_sum,
        {m.sparse.indices: [[0, 0]], m.sparse.values: [1.0], m.sparse.dense_shape: [1, 1]},
    ),
    "empty": lambda m: (m.number, {}),
    "error of a kernel": lambda m: (m.checked, {m.scalar: float("nan")}),
}
LEFT_FEEDS: dict[str, Callable[[Model], tuple[Any, Any]]] = {
    "ragged list": lambda m: (m.total, {m.vector: [[1, 2], [3]]}),
    "complex for a float": lambda m: ([m.doubled], {m.scalar: 1j}),
    "integer that does not": lambda m: (m.same_byte, {m.byte: 300}),
    "negative for unsigned": lambda m: (m.same_byte, {m.byte: -1}),
    "enormous integer": lambda m: (m.same_byte, {m.byte: 10**30}),
    "integer for strings": lambda m: (m.same_text, {m.text: 3}),
    "wrong shape": lambda m: (m.total, {m.vector: np.ones([3, 3], np.float32)}),
    "wrong rank": lambda m: (m.total, {m.vector: np.float32(1)}),
    "not a number": lambda m: ([m.doubled], {m.scalar: "half"}),
    "None": lambda m: ([m.doubled], {m.scalar: None}),
    "a tensor": lambda m: ([m.doubled], {m.scalar: m.number}),
    "fetched too": lambda m: ([m.doubled, m.scalar], {m.scalar: 1.5}),
    "of another graph": lambda m: (m.number, {m.foreign: 1.0}),
    "not feedable": lambda m: (m.number, {m.fixed: 1.0}),
    "by name": lambda m: (m.doubled, {"scalar:0": 1.5}),
    "unknown name": lambda m: (m.doubled, {"unknown:0": 1.5}),
    "operation": lambda m: (m.doubled, {m.scalar.op: 1.5}),
    "nested keys": lambda m: (m.doubled, {(m.scalar, m.flag): (1.5, True)}),
    "sparse value": lambda m: (
        m.sparse_sum,
        {m.sparse: tf.SparseTensorValue([[0, 1]], [2.0], [2, 2])},
    ),
    "sparse tuple": lambda m: (m.sparse_sum, {m.sparse: ([[0, 1]], [2.0], [2, 2])}),
    "ordered dictionary": lambda m: (m.doubled, collections.OrderedDict([(m.scalar, 1.0)])),
    "not a dictionary": lambda m: (m.doubled, [m.scalar]),
}


@pytest.fixture(scope="module")
def feed_cases(model: Model) -> dict[str, tuple[Any, Any]]:
    """The cases, made once: some add operations, and a graph is complete before it is run."""
    return {name: case(model) for name, case in {**FEEDS, **LEFT_FEEDS}.items()}


@pytest.mark.parametrize("name", [*FEEDS, *LEFT_FEEDS])
def test_feeds(sessions: Sessions, feed_cases: dict[str, tuple[Any, Any]], name: str) -> None:
    assert is_left(sessions, lambda: feed_cases[name]) is (name in LEFT_FEEDS)


def test_fed_values_may_change_in_dtype_and_shape_from_call_to_call(
    model: Model, sessions: Sessions
) -> None:
    for value in (np.ones([3, 2], "f"), [[1, 2]], np.ones([4, 3]), np.ones([5, 2]), [[0.5, 1]]):
        left = is_left(sessions, partial(lambda fed: (model.total, {model.vector: fed}), value))
        assert left is (np.shape(value) == (4, 3))


def test_each_run_changes_the_state_once(model: Model, sessions: Sessions) -> None:
    drawn = []
    for session in sessions:
        values = []
        for _ in range(60):  # Past the trial of the caller's thread.
            _, value = session.run([model.increment, model.random])
            values.append(value.tolist())
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run([model.checked, model.random], {model.scalar: float("inf")})
        assert session.run(model.count) == 60
        assert len({tuple(value) for value in values}) == 60
        drawn.append(values[:1])
    assert drawn[0] == drawn[1]


def test_results_are_not_changed_by_later_steps() -> None:
    with tf.Graph().as_default(), runner.CachedSession() as session:
        weights = tf.get_variable("weights", initializer=[1.0] * 64, use_resource=True)
        change = tf.assign_add(weights, [1.0] * 64)
        session.run(weights.initializer)
        first = session.run(weights)
        assert session.run([change, change.op])[0].tolist() == [2.0] * 64
        assert first.tolist() == [1.0] * 64


def test_tensor_handles_options_and_metadata(model: Model, sessions: Sessions) -> None:
    for session in sessions:
        assert session.run(model.handle).eval().tolist() == [7.0]
        for _ in range(2):
            metadata = tf.RunMetadata()
            metadata.step_stats.dev_stats.add().device = "left over"
            assert session.run(model.number, options=tf.RunOptions(), run_metadata=metadata) == 2.5
            assert metadata == tf.RunMetadata()
            traced = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
            session.run(model.number, options=traced, run_metadata=metadata)
            assert metadata.step_stats.dev_stats


def test_a_cost_model_is_told_in_the_metadata() -> None:
    config = tf.ConfigProto(graph_options=tf.GraphOptions(build_cost_model=1))
    told = []
    for kind in (tf.Session, runner.CachedSession):
        with tf.Graph().as_default(), kind(config=config) as session:
            number = tf.constant(2.0) * 3.0
            for _ in range(3):
                metadata = tf.RunMetadata()
                session.run(number, run_metadata=metadata)
            told.append(len(metadata.cost_graph.node))
    assert told[0] == told[1] > 0


@KINDS
def test_time_limits(kind: type[tf.Session]) -> None:
    config = tf.ConfigProto(operation_timeout_in_ms=20)
    with tf.Graph().as_default(), kind(config=config) as session:
        waits = tf.FIFOQueue(1, tf.int32).dequeue()
        for _ in range(2):
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(waits)


@KINDS
def test_a_session_is_the_default_one_until_it_is_closed(
    kind: type[tf.Session], model: Model
) -> None:
    session = kind()
    with session.as_default():
        assert tf.get_default_session() is session
        assert model.number.eval() == 2.5
        assert model.doubled.eval({model.scalar: 2.0}) == 4.0
        model.constant.op.run()
    session.close()
    session.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Attempted to use a closed Session"):
            session.run(model.number)


@KINDS
def test_closing_ends_what_still_runs(kind: type[tf.Session]) -> None:
    with tf.Graph().as_default():
        queue = tf.FIFOQueue(1, tf.int32)
        waits, one, size = queue.dequeue(), queue.enqueue(1), queue.size()
        session = kind()
        session.run(one)
        assert session.run(waits) == 1
        ended: list[Any] = []
        thread = threading.Thread(target=lambda: ended.append(outcome(lambda: session.run(waits))))
        thread.start()
        assert session.run(size) == 0
        session.close()
        thread.join(20)
        assert not thread.is_alive()
        assert ended[0][0] in (tf.errors.CancelledError, RuntimeError)


def test_threads_share_a_session(model: Model, sessions: Sessions) -> None:
    _, fast = sessions
    wrong: list[Any] = []

    def work(offset: int) -> None:
        for value in range(offset, offset + 100):
            feed = {model.scalar: value}
            fetched = [
                fast.run(model.doubled, feed),
                fast.run([model.doubled, model.increment], feed),
            ]
            if fetched != [2 * value, [2 * value, None]]:
                wrong.append((value, fetched))

    threads = [threading.Thread(target=work, args=(1000 * index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert fast.run(model.count) == 600
