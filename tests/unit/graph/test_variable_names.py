from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest
import tensorflow.compat.v1 as tf

from runner.errors import ConfigError
from runner.graph.names import model_variables, name_variables
from tests.tiny.experiment import Net
from tests.tiny.odd import Twins


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    keras.utils.clear_session()
    with tf.Graph().as_default():
        yield


def _built_net() -> Net:
    net = Net()
    net(tf.zeros([1, 8]))
    return net


def test_names_are_paths_without_the_models_name() -> None:
    assert list(model_variables(_built_net())) == [
        "body/dense/kernel",
        "body/dense/bias",
        "body/norm/gamma",
        "body/norm/beta",
        "body/norm/moving_mean",
        "body/norm/moving_variance",
        "seed_generator/seed_generator_state",
        "head/kernel",
        "head/bias",
    ]


def test_a_callable_that_is_no_model_has_none() -> None:
    assert model_variables(lambda features, training: features) == {}


def test_two_variables_of_one_name_are_refused() -> None:
    twins = Twins()
    twins(tf.zeros([1, 8]))
    with pytest.raises(ConfigError) as caught:
        model_variables(twins)
    assert [problem.state for problem in caught.value.problems] == [
        "two variables of the model are named same/bias",
        "two variables of the model are named same/kernel",
    ]


def test_slots_take_the_name_of_their_variable() -> None:
    kernel = tf.get_variable("net/kernel_3", initializer=1.0)
    slot = tf.get_variable("net/kernel_3/Adam", initializer=1.0)
    nested = tf.get_variable("net/kernel_3/Adam/extra", initializer=1.0)
    other = tf.get_variable("beta1_power", initializer=1.0)
    scoped = tf.get_variable("scope/beta1_power", initializer=1.0)
    named = name_variables([kernel, slot, nested, other, scoped], {"head/kernel": kernel})
    assert list(named) == [
        "head/kernel",
        "head/kernel/Adam",
        "head/kernel/Adam/extra",
        "beta1_power",
        "scope/beta1_power",
    ]


def test_the_names_do_not_depend_on_what_was_built_before() -> None:
    keras.layers.Dense(2)(tf.zeros([1, 8]))
    known = model_variables(_built_net())
    names = name_variables(tf.global_variables(), known)
    assert "body/dense/kernel" in names
