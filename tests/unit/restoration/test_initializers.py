from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import tensorflow as tf

from runner.restoration.restorer import remaining

tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def names(variables: Sequence[tf.Variable]) -> list[str]:
    return [variable.op.name for variable in variables]


def left(*overwritten: str, others: Sequence[tf.Operation] = ()) -> list[str]:
    return names(remaining(tf1.global_variables(), overwritten, others))


@pytest.mark.parametrize("use_resource", [True, False])
def test_an_overwritten_variable_is_left_out(use_resource: bool) -> None:
    tf1.get_variable("a", initializer=1.0, use_resource=use_resource)
    tf1.get_variable("b", initializer=1.0, use_resource=use_resource)
    assert left("a") == ["b"]
    assert left("a", "b") == []
    assert left() == ["a", "b"]


@pytest.mark.parametrize("use_resource", [True, False])
def test_a_variable_that_another_initializer_reads_is_kept(use_resource: bool) -> None:
    a = tf1.get_variable("a", initializer=1.0, use_resource=use_resource)
    tf1.get_variable("b", initializer=tf.square(a + 1.0), use_resource=use_resource)
    assert left("a") == ["a", "b"]


@pytest.mark.parametrize("use_resource", [True, False])
def test_a_variable_read_under_a_condition_is_kept(use_resource: bool) -> None:
    a = tf1.get_variable("a", initializer=1.0, use_resource=use_resource)
    value = tf.cond(tf1.is_variable_initialized(a), a.read_value, lambda: a.initial_value)
    tf1.get_variable("b", initializer=value, use_resource=use_resource)
    assert left("a") == ["a", "b"]


def test_a_variable_that_only_an_overwritten_one_reads_is_left_out() -> None:
    a = tf1.get_variable("a", initializer=1.0)
    tf1.get_variable("b", initializer=a + 1.0)
    assert left("a", "b") == []


def test_what_a_kept_initializer_reads_is_kept_too() -> None:
    a = tf1.get_variable("a", initializer=1.0)
    b = tf1.get_variable("b", initializer=a + 1.0)
    tf1.get_variable("c", initializer=b + 1.0)
    assert left("a", "b") == ["a", "b", "c"]


def test_a_variable_read_inside_a_function_is_kept() -> None:
    # In no collection, because TensorFlow's guard of initial values fails for functions.
    a = tf1.get_variable("a", initializer=1.0, use_resource=True, collections=["own"])
    b = tf1.get_variable("b", initializer=tf.function(lambda: a + 1.0)(), use_resource=True)
    assert names(remaining([a, b], ["a"])) == ["a", "b"]


def test_a_variable_that_another_operation_reads_is_kept() -> None:
    a = tf1.get_variable("a", initializer=1.0)
    tf1.get_variable("b", initializer=1.0)
    assert left("a", "b", others=[tf.group(tf.print(a))]) == ["a"]


def test_an_initializer_that_runs_before_another_anyway_is_kept() -> None:
    a = tf1.get_variable("a", initializer=1.0)
    tf1.get_variable("z", initializer=1.0)
    with tf.control_dependencies([a.initializer]):
        value = tf.constant(1.0) + 1.0
    tf1.get_variable("b", initializer=value)
    assert left("a", "z") == ["a", "b"]
