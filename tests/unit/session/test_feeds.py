"""Which fed values are converted here, and which are left to Session.run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.session.fetches import Feed, convert_all, plan_feeds


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
def test_what_does_not_fit_is_left(graph: tf.Graph, value: Any) -> None:
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


def test_keys_that_are_no_plain_tensors_of_the_graph_are_left(graph: tf.Graph) -> None:
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
