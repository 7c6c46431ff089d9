"""Values of a model that a session has meanwhile, or a file."""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from runner.graph import model_values
from runner.graph.model_values import ModelValues, StoredValues
from runner.internals.tensorflow import eager_mode, is_freed


def test_values_are_read_from_the_file_and_given_back() -> None:
    arrays: list[NDArray[Any]] = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(7.0),
        np.array([1.5, -2.5], tf.bfloat16.as_numpy_dtype),
    ]
    variables = [tf.Variable(array) for array in arrays]
    stored = StoredValues()
    with tempfile.TemporaryFile() as file:
        stored.store(variables[1:], file)
        assert [is_freed(variable) for variable in variables] == [False, True, True]
        for variable, array in [*zip(variables, arrays, strict=True)][::-1]:
            value = stored.value(variable)
            assert (value.dtype, value.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(value, array)
        stored.give_back()
    for variable, array in zip(variables, arrays, strict=True):
        np.testing.assert_array_equal(variable.numpy(), array)


@pytest.mark.parametrize("changes", [True, False])
def test_a_session_has_what_it_lends_again(changes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_values, "_PART", 2**12)
    monkeypatch.setattr(model_values, "_LARGE", 2**10)
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(32), keras.layers.Dense(32)])
    kernel, bias, *_ = eager = [variable.value for variable in model.variables]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        held = [
            tf.compat.v1.Variable(tf.fill(value.shape, float(number)), use_resource=True)
            for number, value in enumerate(eager)
        ]
        pairs = {str(number): pair for number, pair in enumerate(zip(held, eager, strict=True))}
        values = ModelValues(model, pairs, StoredValues())
        session.run(tf.compat.v1.global_variables_initializer())

        with eager_mode():
            values.pull(session, weights=True)
            taken = [value.numpy() for value in eager]
            kernel.assign_add(tf.ones(kernel.shape))
            bias.assign(tf.fill(bias.shape, np.nan))
            kept = kernel.read_value()
        assert [session.run(variable).size for variable in held] == [0, 32, 0, 32]

        with eager_mode():
            assert values.push(session, changes=changes) == changes
        session.run([variable.assign_add(tf.ones(variable.shape)) for variable in held])
        expected = [1.0, np.nan, 2.0, 3.0] if changes else [0.0, 1.0, 2.0, 3.0]
        for number, variable in enumerate(held):
            assert np.unique(taken[number]).tolist() == [number]
            np.testing.assert_array_equal(
                session.run(variable), np.full(variable.shape, expected[number] + 1)
            )
        with eager_mode():
            assert [is_freed(value) for value in eager] == [True, False, True, False]
            assert np.unique(kept.numpy()).tolist() == [1.0]
