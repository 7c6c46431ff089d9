"""What is prepared of fetches and feeds, and what is left to Session.run."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.session.fetches import Feed, append_key, convert_all, plan_feeds, plan_fetches

Point = namedtuple("Point", ["x", "y"])


@pytest.fixture(scope="module")
def tensors() -> Iterator[Any]:
    with tf.Graph().as_default():
        yield [tf.constant(float(number)) for number in range(3)]


def key(structure: Any) -> tuple[Any, ...] | None:
    found: list[Any] = []
    return tuple(found) if append_key(structure, found) else None


STRUCTURES: list[Callable[[Any], Any]] = [
    lambda t: t[0],
    lambda t: t[1],
    lambda t: t[0].op,
    lambda t: [t[0]],
    lambda t: (t[0],),
    lambda t: [[t[0]]],
    lambda t: [t[0], t[1]],
    lambda t: [t[1], t[0]],
    lambda t: [[t[0]], t[1]],
    lambda t: [[t[0], t[1]]],
    lambda t: [t[0], [], t[1]],
    lambda t: [[], t[0], t[1]],
    lambda t: Point(t[0], t[1]),
    lambda t: (t[0], t[1]),
    lambda t: {"x": t[0], "y": t[1]},
    lambda t: {"y": t[0], "x": t[1]},
    lambda t: OrderedDict(x=t[0], y=t[1]),
    lambda t: {1: t[0]},
    lambda t: {1.0: t[0]},
    lambda t: {True: t[0]},
    lambda t: {(1, 2): t[0]},
    lambda t: {"x": {"y": t[0]}},
    lambda t: {"x": [t[0], {"y": Point(t[1], t[2])}], "z": t[2].op},
]


def test_equal_structures_have_equal_keys_and_others_do_not(tensors: Any) -> None:
    keys = [key(structure(tensors)) for structure in STRUCTURES]
    assert None not in keys
    assert keys == [key(structure(tensors)) for structure in STRUCTURES]
    assert len(set(keys)) == len(STRUCTURES)


@pytest.mark.parametrize("index", range(len(STRUCTURES)))
def test_results_have_the_structure_of_the_fetches(tensors: Any, index: int) -> None:
    structure = STRUCTURES[index](tensors)
    plan = plan_fetches(structure, tensors[0].graph)
    assert plan is not None
    values = [tensor.name for tensor in plan.tensors]
    assert plan.build(values) == _named(structure)
    assert type(plan.build(values)) is (type(structure) if _is_container(structure) else str) or (
        isinstance(structure, tf.Operation)
    )


def _is_container(structure: Any) -> bool:
    return isinstance(structure, (list, tuple, dict))


def _named(structure: Any) -> Any:
    """The structure with the name of each tensor, and None for each operation."""
    if isinstance(structure, dict):
        return {name: _named(part) for name, part in structure.items()}
    if isinstance(structure, Point):
        return Point(*map(_named, structure))
    if isinstance(structure, (list, tuple)):
        return type(structure)(map(_named, structure))
    return None if isinstance(structure, tf.Operation) else structure.name


def test_what_is_fetched_twice_is_asked_for_once(tensors: Any) -> None:
    first, second, _ = tensors
    plan = plan_fetches([first, [second, first], first.op, first.op], first.graph)
    assert plan is not None
    assert plan.tensors == (first, second)
    assert plan.operations == (first.op,)
    assert plan.build([1, 2]) == [1, [2, 1], None, None]


class OwnList(list[Any]):
    pass


class OwnTuple(tuple[Any, ...]):
    pass


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tensor: tensor.name,
        lambda tensor: None,
        lambda tensor: [tensor, 1],
        lambda tensor: OwnList([tensor]),
        lambda tensor: OwnTuple([tensor]),
        lambda tensor: defaultdict(list, a=tensor),
        lambda tensor: {"a": [tensor, {tensor}]},
        lambda tensor: (tf.sparse.SparseTensor([[0]], [1.0], [1]), tensor),
        lambda tensor: tf.IndexedSlices(tensor, tensor),
    ],
)
def test_other_structures_are_left(tensors: Any, wrap: Callable[[Any], Any]) -> None:
    assert key(wrap(tensors[0])) is None


def test_elements_that_a_callable_cannot_give_are_left(tensors: Any) -> None:
    graph = tensors[0].graph
    with graph.as_default():
        variable = tf.get_variable("variable", [])
        hidden = tf.constant(1.0)
        graph.prevent_fetching(hidden.op)
        handle = tf.get_session_handle(tensors[0])
    with tf.Graph().as_default():
        foreign = tf.constant(1.0)
    for element in (variable.handle, hidden, hidden.op, handle, foreign):
        assert key([tensors[0], element]) is not None
        assert plan_fetches([tensors[0], element], graph) is None
    nothings: list[Any] = [[], {}, ((), [])]
    for nothing in nothings:
        assert plan_fetches(nothing, graph) is None
    planned = plan_fetches(variable, graph)
    assert planned is not None
    assert planned.leaves[0] is variable
    assert planned.tensors == (graph.as_graph_element(variable),)


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def test_an_array_of_the_right_dtype_is_passed_on_as_it_is(graph: tf.Graph) -> None:
    feed = Feed(tf.placeholder(tf.float32, [None, 2]))
    value = np.ones([3, 2], np.float32)
    assert feed.convert(value) is value
    assert feed.convert(value) is value


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, 3.0), (0.5, 0.5), (True, 1.0), (np.float64(2), 2.0), (np.array(2), 2.0), ("1.5", 1.5)],
)
def test_simple_values_are_converted(graph: tf.Graph, value: Any, expected: float) -> None:
    array = Feed(tf.placeholder(tf.float32, [])).convert(value)
    assert array is not None
    assert array.dtype == np.float32
    assert array.shape == ()
    assert array[()] == expected


@pytest.mark.parametrize("value", ["half", [1.0, 2.0], None, object(), 10**400, {}])
def test_values_that_do_not_fit_are_left(graph: tf.Graph, value: Any) -> None:
    feed = Feed(tf.placeholder(tf.float32, []))
    assert feed.convert(value) is None
    assert feed.convert(np.float32(1)) is not None


@pytest.mark.parametrize("value", [-1, 256, 10**30])
def test_integers_that_the_dtype_cannot_hold_are_left(graph: tf.Graph, value: int) -> None:
    assert Feed(tf.placeholder(tf.uint8, [])).convert(value) is None


def test_integers_for_strings_are_left(graph: tf.Graph) -> None:
    feed = Feed(tf.placeholder(tf.string, []))
    assert feed.convert(1) is None
    assert feed.convert("one") == np.array("one", object)


def test_shapes_are_checked_at_every_call(graph: tf.Graph) -> None:
    feed = Feed(tf.placeholder(tf.float32, [None, 2]))
    for rows in (1, 4, 1):
        assert feed.convert(np.ones([rows, 2], np.float32)) is not None
        assert feed.convert(np.ones([rows, 3], np.float32)) is None
        assert feed.convert(np.ones(2, np.float32)) is None


def test_one_value_that_is_left_leaves_all(graph: tf.Graph) -> None:
    feeds = plan_feeds([tf.placeholder(tf.float32, []), tf.placeholder(tf.int32, [2])], graph)
    assert feeds is not None
    assert convert_all(feeds, [1.0, [1, 2]]) == [1.0, pytest.approx([1, 2])]
    assert convert_all(feeds, [1.0, [1, 2, 3]]) is None


def test_feed_keys_other_than_plain_tensors_of_the_graph_are_left(graph: tf.Graph) -> None:
    plain = tf.placeholder(tf.float32, [])
    fixed = tf.constant(1.0)
    graph.prevent_feeding(fixed)
    reference = tf.get_variable("reference", [], use_resource=False)
    resource = tf.get_variable("resource", [], use_resource=True)
    with tf.Graph().as_default():
        foreign = tf.placeholder(tf.float32, [])
    left = [
        object(),
        fixed,
        foreign,
        plain.name,
        plain.op,
        (plain,),
        tf.sparse_placeholder(tf.float32),
    ]
    left += [reference, graph.as_graph_element(reference), resource.handle]
    for key in left:
        assert plan_feeds([plain, key], graph) is None
    planned = plan_feeds([plain], graph)
    assert planned is not None
    assert planned[0].tensor is plain
    assert plan_feeds([], graph) == ()
