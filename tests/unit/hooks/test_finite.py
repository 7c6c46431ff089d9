from __future__ import annotations

import tensorflow.compat.v1 as tf

from runner.hooks import FiniteCheck
from tests.tiny.counter import Counter


def test_it_names_the_variables_that_hold_nan_or_infinity(counter: Counter) -> None:
    variables = {
        "good": tf.get_variable("a", initializer=[1.0, 2.0]),
        "nan": tf.get_variable("b", initializer=[1.0, float("nan")]),
        "infinite": tf.get_variable("c", initializer=float("-inf")),
        "half": tf.get_variable("d", initializer=tf.constant(float("inf"), tf.bfloat16)),
        "step": counter.step_variable,
    }
    check = FiniteCheck(variables)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert check.non_finite(session) == ["nan", "infinite", "half"]
