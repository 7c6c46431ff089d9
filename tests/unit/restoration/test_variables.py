"""Variables, their classes of state, and what slots and averages belong to."""

from __future__ import annotations

import pytest

from runner.restoration.variables import (
    EMA_SUFFIX,
    MovingAverages,
    StateClass,
    classify,
    owners_of,
)


@pytest.mark.parametrize(
    ("name", "model", "state"),
    [
        ("cnn/kernel", True, StateClass.WEIGHT),
        ("cnn/kernel/Adam", False, StateClass.OPTIMIZER_SLOT),
        ("beta1_power", False, StateClass.OPTIMIZER_SLOT),
        ("norm/moving_mean", True, StateClass.BATCH_NORM),
        ("norm/moving_variance", True, StateClass.BATCH_NORM),
        ("norm/moving_meaning", True, StateClass.WEIGHT),
        ("global_step", False, StateClass.GLOBAL_STEP),
        ("drop/seed_generator_state", True, StateClass.RANDOM_STATE),
        ("cnn/kernel/ExponentialMovingAverage", False, StateClass.MOVING_AVERAGE),
        ("cnn/kernel/ExponentialMovingAverage_1", False, StateClass.MOVING_AVERAGE),
        ("ExponentialMovingAverage", True, StateClass.WEIGHT),
    ],
)
def test_classes_of_state(name: str, model: bool, state: StateClass) -> None:
    assert classify(name, model=model) is state


SLOT, AVERAGE = StateClass.OPTIMIZER_SLOT, StateClass.MOVING_AVERAGE


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        ("cnn/kernel/Adam", SLOT, "cnn/kernel"),
        ("cnn/kernel/Adam_1", SLOT, "cnn/kernel"),
        ("cnn/kernel/a/b", SLOT, "cnn/kernel"),
        ("cnn/Adam", SLOT, "cnn"),
        ("beta1_power", SLOT, None),
        ("other/kernel/Adam", SLOT, None),
        ("cnn/kernel/Adam", StateClass.WEIGHT, None),
        ("cnn/bias", SLOT, "cnn"),
        (f"cnn/norm/moving_mean{EMA_SUFFIX}", AVERAGE, "cnn/norm/moving_mean"),
        (f"cnn/kernel/Adam{EMA_SUFFIX}", AVERAGE, "cnn/kernel"),
    ],
)
def test_the_owner_is_the_longest_variable_name_above(
    name: str, state: StateClass, expected: str | None
) -> None:
    states = dict.fromkeys(("cnn/kernel", "cnn"), StateClass.WEIGHT)
    states |= {"cnn/kernel/Adam": SLOT, "cnn/norm/moving_mean": StateClass.BATCH_NORM, name: state}
    assert owners_of(states).get(name) == expected


def test_averages_as_tensorflow_and_keras_name_them() -> None:
    averages = MovingAverages(
        [
            "a/k/ExponentialMovingAverage",
            "adam/net_a_k_average",
            "adam/net_body_dense_kernel_average",
            "one/x_bias_average",
            "two/y_bias_average",
        ]
    )
    assert averages.find("a/k") == "a/k/ExponentialMovingAverage"
    assert averages.find("body/dense/kernel") == "adam/net_body_dense_kernel_average"
    assert averages.find("net.body.dense.kernel") == "adam/net_body_dense_kernel_average"
    assert averages.find("x/bias") == "one/x_bias_average"
    assert averages.find("bias") is None  # Two might be meant.
    assert averages.find("other") is None
