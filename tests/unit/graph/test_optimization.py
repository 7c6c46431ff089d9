"""Groups of variables train by schedules of their own, and the others as if there were none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.errors import ConfigError
from runner.graph.optimization import (
    Schedule,
    apply_gradients,
    build_optimizer,
    build_optimizers,
    shared_state,
)
from runner.graph.training_step import learning_rate

ADAM = {"_target_": "tensorflow.compat.v1.train.AdamOptimizer", "learning_rate": 0.1}
SGD = {"_target_": "tensorflow.compat.v1.train.GradientDescentOptimizer", "learning_rate": 0.1}
MOMENTUM = {
    "_target_": "tensorflow.compat.v1.train.MomentumOptimizer",
    "learning_rate": 0.1,
    "momentum": 0.9,
}
TARGET = np.asarray([1.0, -2.0, 3.0], np.float32)
Values = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def _train(node: dict[str, Any], steps: int, *, resource: bool = True, **schedules: Any) -> Values:
    """Returns the values of all variables before the first step and after each.

    Minimises the sum of the squared distances of `a` and `b` from TARGET.
    """
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        a, b = (tf.get_variable(each, [3], use_resource=resource) for each in "ab")
        loss = tf.reduce_sum((a - TARGET) ** 2) + tf.reduce_sum((b - TARGET) ** 2)
        pairs = [(each, schedules.get(each.op.name, Schedule())) for each in (a, b)]
        optimizers = build_optimizers(node, pairs, step, learning_rate(node, step.read_value()))
        gradients = next(iter(optimizers.values())).compute_gradients(loss, var_list=[a, b])
        op = apply_gradients(optimizers, gradients, pairs, step)
        start = [tf.assign(each, [0.5, 0.5, 0.5]) for each in (a, b)]
        everything = {each.op.name: each for each in tf.global_variables()}
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(start)
            values = [session.run(everything)]
            for _ in range(steps):
                session.run(op)
                values.append(session.run(everything))
    return values


def test_without_schedules_it_is_what_the_optimizer_does_alone() -> None:
    found = _train(ADAM, 5)
    with tf.Graph().as_default(), tf.Session() as session:
        a, b = (tf.get_variable(each, [3], use_resource=True) for each in "ab")
        loss = tf.reduce_sum((a - TARGET) ** 2) + tf.reduce_sum((b - TARGET) ** 2)
        op = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())
        session.run(tf.global_variables_initializer())
        session.run([tf.assign(each, [0.5, 0.5, 0.5]) for each in (a, b)])
        for _ in range(5):
            session.run(op)
        expected = session.run({each.op.name: each for each in tf.global_variables()})
    assert set(found[-1]) == set(expected)
    for name, value in expected.items():
        assert np.array_equal(found[-1][name], value), name


@pytest.mark.parametrize("node", [ADAM, MOMENTUM, SGD], ids=["adam", "momentum", "sgd"])
def test_a_frozen_group_starts_at_its_step_as_if_training_began_there(
    node: dict[str, Any],
) -> None:
    free = _train(node, 5)
    frozen = _train(node, 5, b=Schedule(freeze_until_step=3))
    powers = ("from_step_3/beta1_power", "from_step_3/beta2_power")
    own = [name for name in frozen[0] if name.split("/")[0] == "b" or name in powers]
    assert len(own) == {ADAM["_target_"]: 5, MOMENTUM["_target_"]: 2}.get(node["_target_"], 1)
    for step in (1, 2, 3):
        for name in own:
            assert np.array_equal(frozen[step][name], frozen[0][name]), (step, name)
        assert np.array_equal(frozen[step]["a"], free[step]["a"])
    for step in (4, 5):
        assert np.array_equal(frozen[step]["b"], free[step - 3]["b"])
        assert np.array_equal(frozen[step]["a"], free[step]["a"])
    assert [each["global_step"] for each in frozen] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("node", [ADAM, MOMENTUM], ids=["adam", "momentum"])
def test_names_do_not_depend_on_the_other_groups(node: dict[str, Any]) -> None:
    plain = set(_train(node, 0)[0])
    one = set(_train(node, 0, a=Schedule(0, 0.1))[0])
    both = set(_train(node, 0, a=Schedule(0, 0.1), b=Schedule(3, 1e-5))[0])
    assert plain <= one, "the unscheduled ones are called as if there were no schedule"
    assert one - plain == {name for name in one if name.startswith("rate_x0.1/")}
    assert one - plain <= both
    assert both - one == {name for name in both if name.startswith("from_step_3_rate_x1e-05/")}
    assert len(both) == len(one) == len(plain) + 2 * (node is ADAM)


def test_any_multiplier_gives_a_name() -> None:
    assert Schedule(0, 2e7).scope == "rate_x2e07"
    assert "rate_x2e07/beta1_power" in _train(ADAM, 0, a=Schedule(0, 2e7))[0]
    assert Schedule().scope == ""


def test_what_an_optimizer_keeps_once_is_known() -> None:
    step = tf.train.get_or_create_global_step()
    a, b, c = (tf.get_variable(each, [3], use_resource=True) for each in "abc")
    pairs = [(a, Schedule()), (b, Schedule(2, 1.0)), (c, Schedule())]
    for node, names in ((ADAM, ("beta1_power", "beta2_power")), (MOMENTUM, ())):
        optimizers = build_optimizers(node, pairs, step, learning_rate(node, step.read_value()))
        gradients = next(iter(optimizers.values())).compute_gradients(a + b * c, [a, b, c])
        apply_gradients(optimizers, gradients, pairs, step)
        assert shared_state(optimizers, pairs) == {
            **dict.fromkeys(names, ("a", "c")),
            **{f"from_step_2/{name}": ("b",) for name in names},
        }


def test_a_multiplier_scales_the_steps_of_its_group_alone() -> None:
    values = _train(SGD, 1, b=Schedule(learning_rate_multiplier=0.5))
    gradient = 2 * (values[0]["a"] - TARGET)
    np.testing.assert_allclose(values[1]["a"], values[0]["a"] - 0.1 * gradient, rtol=1e-6)
    np.testing.assert_allclose(values[1]["b"], values[0]["b"] - 0.05 * gradient, rtol=1e-6)


def test_a_multiplier_takes_reference_variables_too_and_a_freeze_does_not() -> None:
    values = _train(SGD, 1, resource=False, b=Schedule(learning_rate_multiplier=0.5))
    gradient = 2 * (values[0]["b"] - TARGET)
    np.testing.assert_allclose(values[1]["b"], values[0]["b"] - 0.05 * gradient, rtol=1e-6)
    with pytest.raises(ConfigError, match="a reference variable cannot be updated under a cond"):
        _train(SGD, 1, resource=False, b=Schedule(freeze_until_step=3))


def test_both_work_together() -> None:
    values = _train(SGD, 2, b=Schedule(freeze_until_step=1, learning_rate_multiplier=2.0))
    assert np.array_equal(values[1]["b"], values[0]["b"])
    gradient = 2 * (values[1]["b"] - TARGET)
    np.testing.assert_allclose(values[2]["b"], values[1]["b"] - 0.2 * gradient, rtol=1e-6)


def test_a_multiplier_without_a_rate_is_refused() -> None:
    step = tf.train.get_or_create_global_step()
    with pytest.raises(ConfigError, match=r"is 0\.5, and there is no optimizer\.learning_rate"):
        build_optimizer({"_target_": "tests.tiny.odd.NoRate"}, step, None, 0.5)


def test_a_schedule_of_the_rate_is_multiplied_too() -> None:
    step = tf.train.get_or_create_global_step()
    rate = tf.train.piecewise_constant(step, [0], [0.5, 0.25])
    optimizer = build_optimizer(SGD, step, rate, 4.0)
    weight = tf.get_variable("w", initializer=0.0, use_resource=True)
    op = optimizer.minimize(-weight, global_step=step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = []
        for _ in range(2):
            session.run(op)
            found.append(float(session.run(weight)))
    assert found == [2.0, 3.0]


def test_what_is_no_optimizer_is_refused() -> None:
    step = tf.train.get_or_create_global_step()
    with pytest.raises(ConfigError, match=r"is not a tf\.compat\.v1\.train\.Optimizer"):
        build_optimizer({"_target_": "builtins.dict"}, step)
