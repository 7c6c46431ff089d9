from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from runner.graph.build import build_graph
from runner.graph.resumability import not_resumed_exactly
from tests.tiny.configs import tiny


def _step(value: tf.Tensor) -> tf.Operation:
    variable = tf.get_variable("v", initializer=tf.random_normal([]), use_resource=True)
    return variable.assign_add(value).op


def test_keras_keeps_its_seeds_in_the_checkpoint() -> None:
    training = build_graph(tiny(), "validation", train=True).training
    assert training is not None
    assert not_resumed_exactly(training.train_op) == []


def test_random_operations_with_state_of_their_own_are_told() -> None:
    with tf.Graph().as_default():
        (line,) = not_resumed_exactly(_step(tf.random_uniform([], name="draw")))
    assert line.startswith("random numbers: draw/RandomUniform (RandomUniform) keeps its state in")


def test_functions_are_looked_into() -> None:
    with tf.Graph().as_default():
        inner = tf.function(lambda: tf.random_normal([]))
        outer = tf.function(lambda: tf.cond(tf.random_uniform([]) > 0.5, inner, inner))
        (line,) = not_resumed_exactly(_step(outer()))
    assert "RandomStandardNormal" in line
    assert "(RandomUniform)" in line


def test_python_in_the_step_is_told() -> None:
    with tf.Graph().as_default():
        value = tf.numpy_function(lambda: np.float32(1.0), [], tf.float32)
        (line,) = not_resumed_exactly(_step(tf.ensure_shape(value, [])))
    assert line.startswith("Python in the step: what ")


def test_stateless_numbers_are_not() -> None:
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        draw = tf.random.stateless_uniform([], seed=tf.stack([step, 7]))
        assert not_resumed_exactly(_step(draw)) == []


def test_many_are_not_all_named() -> None:
    with tf.Graph().as_default():
        (line,) = not_resumed_exactly(_step(tf.add_n([tf.random_uniform([]) for _ in range(5)])))
    assert " and 2 more keeps" in line
