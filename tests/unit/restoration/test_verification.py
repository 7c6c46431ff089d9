from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from runner.checkpoints.reader import TensorSpec
from runner.errors import CheckpointError
from runner.restoration.plan import Assignment, SourceTensor
from runner.restoration.variables import StateClass, VariableSpec
from runner.restoration.verification import require_equal, value_hash

VALUES: list[Any] = [
    np.float32(1),
    np.zeros((2, 3), np.float32),
    np.zeros((3, 2), np.float32),
    np.zeros((2, 3), np.int32),
    np.zeros((0, 3), np.float32),
    np.array([-0.0, 0.0], np.float32),
    np.array([0.0, 0.0], np.float32),
    np.array([True]),
    np.array([1, 2], ml_dtypes.bfloat16),
    np.array([b"ab", b"c"], object),
    np.array([b"a", b"bc"], object),
]


def test_every_difference_changes_the_hash() -> None:
    assert len({value_hash(np.asarray(value)) for value in VALUES}) == len(VALUES)


def test_equal_values_have_one_hash_whatever_their_layout_in_memory() -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert value_hash(np.asfortranarray(value)) == value_hash(value)
    assert value_hash(np.array(["ab"], object)) == value_hash(np.array([b"ab"], object))
    nan = np.array([np.nan], np.float32)
    assert value_hash(nan.copy()) == value_hash(nan)


def test_all_variables_that_differ_are_named() -> None:
    def assignment(name: str) -> Assignment:
        variable = VariableSpec(TensorSpec(name, (), "float32"), StateClass.WEIGHT, True, "Const")
        return Assignment(
            variable, "cnn", (SourceTensor("cnn", TensorSpec(f"old_{name}", (), "float32")),)
        )

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = {
            name: tf.compat.v1.get_variable(name, initializer=1.0) for name in ("a", "b", "c")
        }
        session.run(tf.compat.v1.global_variables_initializer())
        good, bad = value_hash(np.asarray(np.float32(1))), value_hash(np.asarray(np.float32(2)))
        assignments = [assignment(name) for name in variables]
        require_equal(session, dict.fromkeys(variables, good), variables, assignments)
        with pytest.raises(CheckpointError, match=r"a does .* old_a of cnn") as caught:
            require_equal(session, {"a": bad, "b": good, "c": bad}, variables, assignments)
    assert [each.state.split()[0] for each in caught.value.problems] == ["a", "c"]
    for cause in ("assigns to it", "was being written", "memory or disk"):
        assert cause in caught.value.problems[0].remedy
