"""What slots and averages belong to."""

from __future__ import annotations

import pytest

from runner.restoration.states import MovingAverages, Owner, owner_of, owners_of
from runner.restoration.variables import StateClass

SLOT, AVERAGE = StateClass.OPTIMIZER_SLOT, StateClass.MOVING_AVERAGE


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        ("cnn/kernel/Adam", SLOT, Owner("cnn/kernel", "/Adam")),
        ("cnn/kernel/Adam_1", SLOT, Owner("cnn/kernel", "/Adam_1")),
        ("cnn/kernel/a/b", SLOT, Owner("cnn/kernel", "/a/b")),
        ("cnn/Adam", SLOT, Owner("cnn", "/Adam")),
        (
            "cnn/kernel/ExponentialMovingAverage",
            AVERAGE,
            Owner("cnn/kernel", "/ExponentialMovingAverage"),
        ),
        ("beta1_power", SLOT, None),
        ("other/kernel/Adam", SLOT, None),
        ("cnn/kernel/Adam", StateClass.WEIGHT, None),
        ("cnn/kernel", SLOT, Owner("cnn", "/kernel")),
    ],
)
def test_the_owner_is_the_longest_variable_name_above(
    name: str, state: StateClass, expected: Owner | None
) -> None:
    assert owner_of(name, state, {"cnn/kernel", "cnn"}) == expected


def test_owners_are_variables_of_the_model() -> None:
    states = {
        "a/k": StateClass.WEIGHT,
        "a/k/Adam": SLOT,
        "a/k/Adam/ExponentialMovingAverage": AVERAGE,
        "n/moving_mean": StateClass.BATCH_NORM,
        "n/moving_mean/ExponentialMovingAverage": AVERAGE,
    }
    assert owners_of(states) == {
        "a/k/Adam": Owner("a/k", "/Adam"),
        "a/k/Adam/ExponentialMovingAverage": Owner("a/k", "/Adam/ExponentialMovingAverage"),
        "n/moving_mean/ExponentialMovingAverage": Owner(
            "n/moving_mean", "/ExponentialMovingAverage"
        ),
    }


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
