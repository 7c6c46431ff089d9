"""Values of a model that lie in a file while a session has them too."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.graph.model_values import StoredValues
from runner.internals.tensorflow import is_freed


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
