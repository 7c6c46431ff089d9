from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.restoration.initial_values import LARGEST_BYTES, SMALLEST_GROUP, groups, values

tf1 = tf.compat.v1
COUNT = SMALLEST_GROUP


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def variables_of(
    initializer: Callable[[int], Any], shape: Sequence[int] | None = (4, 3), count: int = COUNT
) -> list[tf.Variable]:
    return [
        tf1.get_variable(f"v{each}", shape, initializer=initializer(each), use_resource=True)
        for each in range(count)
    ]


def computed(variables: Sequence[tf.Variable]) -> list[Any]:
    found = {v.op.name: value for group in groups(variables) for v, value in values(group)}
    return [found[each.op.name] for each in variables]


def run(variables: Sequence[tf.Variable]) -> list[Any]:
    with tf1.Session() as session:
        session.run([each.initializer for each in variables])
        found: list[Any] = session.run(list(variables))
    return found


@pytest.mark.parametrize(
    "initializer",
    [
        lambda number: tf1.glorot_uniform_initializer(seed=number),
        lambda _: tf1.glorot_normal_initializer(),
        lambda _: tf1.truncated_normal_initializer(stddev=0.1),
        lambda _: tf1.random_normal_initializer(),
        lambda _: tf1.random_uniform_initializer(),
        lambda _: tf1.random_uniform_initializer(0, 9, dtype=tf.int32),
        lambda number: tf1.orthogonal_initializer(seed=number),
        lambda _: tf1.zeros_initializer(),
        lambda number: tf1.constant_initializer(number),
        lambda number: tf.keras.initializers.GlorotUniform(seed=number),
        lambda number: tf.keras.initializers.Orthogonal(seed=number),
        lambda _: tf.keras.initializers.Ones(),
    ],
)
def test_with_a_seed_the_values_are_those_of_a_session(initializer: Callable[[int], Any]) -> None:
    tf1.set_random_seed(3)
    variables = variables_of(initializer)
    for one, other in zip(computed(variables), run(variables), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def test_variables_of_several_shapes_are_one_group() -> None:
    tf1.set_random_seed(3)
    variables = [
        tf1.get_variable(
            f"v{each}", [each, 2], initializer=tf1.glorot_uniform_initializer(), use_resource=True
        )
        for each in range(1, 40)
    ]
    assert [len(each) for each in groups(variables)] == [39]
    for one, other in zip(computed(variables), run(variables), strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_a_seed_the_values_are_independent_and_distributed_alike() -> None:
    variables = variables_of(lambda _: tf1.random_normal_initializer(), (400,), 50)
    found = np.stack(computed(variables))
    assert len(np.unique(found)) > 0.99 * found.size
    assert abs(found.mean()) < 0.05
    assert abs(found.std() - 1) < 0.05
    assert not np.array_equal(found, np.stack(computed(variables)))


def test_every_value_has_memory_of_its_own() -> None:
    cases: list[Any] = [((4,), tf1.zeros_initializer()), (None, np.zeros(4, np.float32))]
    for shape, initializer in cases:
        with tf.Graph().as_default():
            found = computed(
                variables_of({}.fromkeys(range(COUNT), initializer).__getitem__, shape)
            )
        for each in found:
            each += 1
        np.testing.assert_array_equal(found, np.ones((COUNT, 4)))


def test_a_value_given_as_an_array_is_found() -> None:
    variables = variables_of(lambda number: np.full((2,), number, np.int64), None)
    np.testing.assert_array_equal(computed(variables), run(variables))


def test_no_operation_is_added(graph: tf.Graph) -> None:
    variables = variables_of(lambda _: tf1.glorot_uniform_initializer())
    graph.finalize()
    assert len(computed(variables)) == COUNT


def test_a_small_group_and_large_variables_are_left_to_the_session() -> None:
    assert not groups(variables_of(lambda _: tf1.zeros_initializer(), count=COUNT - 1))
    with tf1.variable_scope("large"):
        elements = LARGEST_BYTES // 4 + 1
        assert not groups(variables_of(lambda _: tf1.zeros_initializer(), (elements,)))
    with tf1.variable_scope("text"):
        assert not groups(variables_of(lambda _: np.array(["a"], object), None))


def reads_a_variable(number: int) -> Any:
    return tf1.get_variable(f"read{number}", initializer=1.0, use_resource=True) + 1.0


def is_fed(_: int) -> Any:
    return tf1.placeholder_with_default(1.0, ()) + 1.0


def waits(_: int) -> Any:
    with tf.control_dependencies([tf.no_op()]):
        return tf.constant(1.0) + 1.0


def calls_a_function(_: int) -> Any:
    return tf.function(lambda: tf.constant(1.0))()


def is_asked_for(_: int) -> Any:
    return tf.numpy_function(lambda: np.float32(1.0), [], tf.float32, stateful=True)


def is_long(number: int) -> Any:
    value = tf.constant(float(number))
    for _ in range(100):
        value += 1.0
    return value


def is_chosen(number: int) -> Any:
    switched = tf.raw_ops.Switch(data=float(number), pred=True)
    return switched.output_true


@pytest.mark.parametrize(
    "initial", [reads_a_variable, is_fed, waits, calls_a_function, is_asked_for, is_long, is_chosen]
)
def test_what_is_not_the_variables_own_matter_is_left_to_the_session(
    initial: Callable[[int], Any],
) -> None:
    variables = []
    for number in range(COUNT):
        value = tf.ensure_shape(initial(number), ())
        variables.append(tf1.get_variable(f"v{number}", initializer=value, use_resource=True))
    assert not groups(variables)


@pytest.mark.parametrize("seed", [None, 3])
def test_random_numbers_that_others_use_too_are_left_to_the_session(seed: int | None) -> None:
    drawn = [tf1.random_uniform([2], seed=seed) for _ in range(COUNT)]
    variables = variables_of(lambda number: drawn[number] + 1.0, None)
    assert len(groups(variables)) == 1
    for each in drawn:
        tf.identity(each)
    assert not groups(variables)
