"""Optimizers and their schedules, gradients, moving averages and learning rates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from hydra import compose, initialize_config_dir

from runner.config.composition import register
from runner.config.schema import ClipConfig
from runner.config.validation import validate
from runner.errors import ConfigError
from runner.graph.optimization import (
    Batch,
    Gradients,
    Schedule,
    accumulate,
    apply_gradients,
    average_weights,
    averaged_names,
    build_optimizer,
    build_optimizers,
    clip,
    shared_state,
)
from runner.graph.training_step import learning_rate

CONF = Path(__file__).resolve().parents[3] / "conf"
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
        a, b = (tf.get_variable(name, [3], use_resource=resource) for name in "ab")
        loss = tf.reduce_sum((a - TARGET) ** 2) + tf.reduce_sum((b - TARGET) ** 2)
        pairs = [(variable, schedules.get(variable.op.name, Schedule())) for variable in (a, b)]
        rate = learning_rate(node, step.read_value())
        optimizers = build_optimizers(node, pairs, step, rate=rate, weights={})
        gradients = next(iter(optimizers.values())).compute_gradients(loss, var_list=[a, b])
        op = apply_gradients(optimizers, gradients, pairs, global_step=step)
        start = [tf.assign(variable, [0.5, 0.5, 0.5]) for variable in (a, b)]
        everything = {variable.op.name: variable for variable in tf.global_variables()}
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(start)
            values = [session.run(everything)]
            for _ in range(steps):
                session.run(op)
                values.append(session.run(everything))
    return values


@pytest.mark.parametrize("node", [ADAM, MOMENTUM], ids=["adam", "momentum"])
def test_a_frozen_group_starts_at_its_step_as_if_training_began_there(node: dict[str, Any]) -> None:
    free = _train(node, 5)
    frozen = _train(node, 5, b=Schedule(freeze_until_step=3))
    powers = ("from_step_3/beta1_power", "from_step_3/beta2_power")
    own = [name for name in frozen[0] if name.split("/")[0] == "b" or name in powers]
    assert len(own) == (5 if node is ADAM else 2)
    for step in (1, 2, 3):
        for name in own:
            assert np.array_equal(frozen[step][name], frozen[0][name]), (step, name)
        assert np.array_equal(frozen[step]["a"], free[step]["a"])
    for step in (4, 5):
        assert np.array_equal(frozen[step]["b"], free[step - 3]["b"])
        assert np.array_equal(frozen[step]["a"], free[step]["a"])
    assert [values["global_step"] for values in frozen] == [0, 1, 2, 3, 4, 5]


def test_names_do_not_depend_on_the_other_groups() -> None:
    plain = set(_train(ADAM, 0)[0])
    one = set(_train(ADAM, 0, a=Schedule(0, 0.1))[0])
    both = set(_train(ADAM, 0, a=Schedule(0, 0.1), b=Schedule(3, 2e7))[0])
    assert plain <= one, "the unscheduled ones are called as if there were no schedule"
    assert one - plain == {name for name in one if name.startswith("rate_x0.1/")}
    assert one - plain <= both
    assert both - one == {name for name in both if name.startswith("from_step_3_rate_x2e07/")}
    assert len(both) == len(one) == len(plain) + 2


# Both scale what the schedule of the rate gives, and reference variables too.
@pytest.mark.parametrize(("freeze", "multiplier", "resource"), [(0, 0.5, False), (1, 2e7, True)])
def test_a_multiplier_scales_the_steps_of_its_group_alone(
    freeze: int, multiplier: float, resource: bool
) -> None:
    schedule = Schedule(freeze, multiplier)
    halving = {
        "_target_": "keras.optimizers.schedules.PiecewiseConstantDecay",
        "boundaries": [0],
        "values": [0.1, 0.05],
    }
    values = _train({**SGD, "learning_rate": halving}, 2, resource=resource, b=schedule)
    for step, rate in enumerate((0.1, 0.05)):
        for name, scale in (("a", 1.0), ("b", multiplier if step >= freeze else 0.0)):
            before = values[step][name]
            expected = before - scale * rate * 2 * (before - TARGET)
            np.testing.assert_allclose(values[step + 1][name], expected, rtol=1e-5)


def test_what_an_optimizer_keeps_once_is_known() -> None:
    step = tf.train.get_or_create_global_step()
    a, b, c = (tf.get_variable(name, [3], use_resource=True) for name in "abc")
    pairs = [(a, Schedule()), (b, Schedule(2, 1.0)), (c, Schedule())]
    for node, names in ((ADAM, ("beta1_power", "beta2_power")), (MOMENTUM, ())):
        rate = learning_rate(node, step.read_value())
        optimizers = build_optimizers(node, pairs, step, rate=rate, weights={})
        gradients = next(iter(optimizers.values())).compute_gradients(a + b * c, [a, b, c])
        apply_gradients(optimizers, gradients, pairs, global_step=step)
        assert shared_state(optimizers, pairs) == {
            **dict.fromkeys(names, ("a", "c")),
            **{f"from_step_2/{name}": ("b",) for name in names},
        }


def test_a_multiplier_without_a_rate_is_refused() -> None:
    step = tf.train.get_or_create_global_step()
    with pytest.raises(ConfigError, match=r"is 0\.5, and there is no optimizer\.learning_rate"):
        build_optimizer({"_target_": "tests.tiny.odd.fixed_descent"}, step, multiplier=0.5)


def _gradients() -> Gradients:
    variables = [tf.get_variable(name, [2]) for name in "abc"]
    return [
        (tf.constant([3.0, -4.0]), variables[0]),
        (None, variables[1]),
        (tf.constant([0.0, 12.0]), variables[2]),
    ]


@pytest.mark.parametrize(
    ("bounds", "first", "last"),
    [
        (ClipConfig(), [3.0, -4.0], [0.0, 12.0]),
        (ClipConfig(value=3.5), [3.0, -3.5], [0.0, 3.5]),
        (ClipConfig(norm=2.5), [1.5, -2.0], [0.0, 2.5]),
        (ClipConfig(global_norm=6.5), [1.5, -2.0], [0.0, 6.0]),
        (ClipConfig(norm=2.5, global_norm=100.0), [1.5, -2.0], [0.0, 2.5]),
    ],
)
def test_gradients_keep_their_bounds(
    bounds: ClipConfig, first: list[float], last: list[float]
) -> None:
    gradients = _gradients()
    clipped = clip(gradients, bounds)
    assert [variable for _, variable in clipped] == [variable for _, variable in gradients]
    assert clipped[1][0] is None
    with tf.Session() as session:
        values = session.run([clipped[0][0], clipped[2][0]])
    np.testing.assert_allclose(values, [first, last], rtol=1e-6)


def test_several_batches_are_averaged_one_after_another() -> None:
    weight = tf.get_variable("w", initializer=[0.0, 0.0], use_resource=True)
    unused = tf.get_variable("u", [1])
    seen = tf.get_variable("seen", initializer=0.0, use_resource=True)
    data = tf.data.Dataset.from_tensor_slices(
        np.array([[1, 0], [2, 0], [6, 3]], np.float32)
    ).repeat()
    iterator = tf.data.make_initializable_iterator(data)

    def one_batch() -> Batch:
        batch = iterator.get_next()
        seen.assign_add(batch[0])  # A side effect like those of batch norm.
        (gradient,) = tf.gradients(tf.reduce_sum(batch * weight), [weight.handle])
        return (
            {"loss": batch[0]},
            [(gradient, weight), (None, unused)],
            tf.constant(0.5, tf.float64),
        )

    means, gradients, waited = accumulate(one_batch, ["loss"], [weight, unused], count=3)
    assert gradients[1] == (None, unused)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), iterator.initializer])
        assert session.run((means["loss"], waited)) == (3.0, 1.5)
        assert session.run(gradients[0][0]).tolist() == [3.0, 1.0]
        assert session.run(seen) == 18.0


def test_averages_take_the_weights_place_until_the_end_or_an_error() -> None:
    """They follow sooner at the start: by a decay of 1/10 in place of 3/4."""
    weight = tf.get_variable("w", initializer=1.0, use_resource=True)
    train_op = weight.assign_add(4.0)
    with tf.control_dependencies([train_op]):
        averages, update = average_weights([weight], 0.75, tf.train.get_or_create_global_step())
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(update)
        with contextlib.suppress(ZeroDivisionError), averages.in_place(session):
            assert session.run(weight) == pytest.approx(4.6), "and nothing was trained"
            raise ZeroDivisionError
        assert session.run(weight) == 5.0


def test_averages_in_a_checkpoint_stand_for_their_weights(tmp_path: Path) -> None:
    weight, other = (tf.get_variable(name, [], use_resource=True) for name in "wb")
    average_weights([weight], 0.5, tf.train.get_or_create_global_step())
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        prefix = tf.train.Saver().save(session, str(tmp_path / "model"))
    assert averaged_names({"w": weight, "b": other}, prefix) == {
        "w/ExponentialMovingAverage": weight,
        "b": other,
    }


def _rates(node: Any, steps: list[int]) -> list[float]:
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        rate = learning_rate({**SGD, "learning_rate": node}, step)
        assert rate is not None
        assert (rate.shape, rate.dtype) == ((), tf.float32)
        return [float(session.run(rate, {step: value})) for value in steps]


def _shipped(name: str, *overrides: str) -> Any:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        schedule = f"+schedule@optimizer.learning_rate={name}"
        changes = [f"optimizer.learning_rate.{override}" for override in overrides]
        config = compose("config", ["+experiment=digits_cnn", schedule, *changes])
    return validate(config).optimizer["learning_rate"]


SHIPPED = [
    (
        "cosine",
        ["decay_steps=100", "warmup_steps=10", "warmup_target=1e-2"],
        {0: 1e-3, 5: 5.5e-3, 10: 1e-2, 60: 5e-3, 110: 0.0},
    ),
    ("exponential", ["decay_steps=10"], {0: 1e-3, 10: 5e-4, 20: 2.5e-4}),
    ("piecewise", ["boundaries=[10,20]"], {10: 1e-3, 11: 3e-4, 21: 1e-4}),
    ("warmup", ["decay_steps=10"], {0: 0.0, 5: 5e-4, 10: 1e-3, 50: 1e-3}),
]


def test_every_shipped_schedule_is_tested() -> None:
    assert {path.stem for path in (CONF / "schedule").glob("*.yaml")} == {
        schedule for schedule, *_ in SHIPPED
    }


@pytest.mark.parametrize(("name", "overrides", "expected"), SHIPPED)
def test_a_shipped_schedule(name: str, overrides: list[str], expected: dict[int, float]) -> None:
    rates = _rates(_shipped(name, *overrides), list(expected))
    assert rates == pytest.approx(list(expected.values()), abs=1e-9)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("fast", r"learning_rate is 'fast'"),
        (True, "learning_rate is True"),
        ([0.1], r"learning_rate is \[0.1\]"),
        ({"decay_steps": 3}, r"learning_rate is \{'decay_steps': 3\}"),
        ({"_target_": "builtins.str"}, "neither a number nor"),
    ],
)
def test_what_is_no_rate_is_refused(node: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        _rates(node, [0])
    assert "schedule@optimizer.learning_rate=cosine" in caught.value.problems[0].remedy


def test_without_a_number_it_is_the_default_of_the_optimizer() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.constant(0, tf.int64)
        rate = learning_rate({"_target_": ADAM["_target_"]}, step)
        assert session.run(rate) == pytest.approx(0.001)
        assert learning_rate({"_target_": SGD["_target_"]}, step) is None
