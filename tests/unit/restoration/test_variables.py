"""Every variable has a class of state, and a warm start brings two of them."""

from __future__ import annotations

import pytest

from runner.checkpoints.reader import TensorSpec
from runner.restoration.variables import WARM_STARTED, StateClass, VariableSpec, classify


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("cnn/conv1/kernel", StateClass.WEIGHT),
        ("norm/gamma", StateClass.WEIGHT),
        ("norm/moving_mean", StateClass.BATCH_NORM),
        ("moving_variance", StateClass.BATCH_NORM),
        ("cnn/dropout/seed_generator_state", StateClass.RANDOM_STATE),
        ("cnn/kernel/ExponentialMovingAverage", StateClass.MOVING_AVERAGE),
        ("cnn/kernel/ExponentialMovingAverage_1", StateClass.MOVING_AVERAGE),
        ("global_step", StateClass.GLOBAL_STEP),
        ("model/global_step", StateClass.GLOBAL_STEP),
        ("my_global_step", StateClass.WEIGHT),
        ("moving_mean_of_mine", StateClass.WEIGHT),
    ],
)
def test_a_variable_of_the_model(name: str, state: StateClass) -> None:
    assert classify(name, model=True) is state


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("cnn/conv1/kernel/Adam", StateClass.OPTIMIZER_SLOT),
        ("beta1_power", StateClass.OPTIMIZER_SLOT),
        ("global_step", StateClass.GLOBAL_STEP),
        ("cnn/kernel/ExponentialMovingAverage", StateClass.MOVING_AVERAGE),
    ],
)
def test_a_variable_of_the_training_step(name: str, state: StateClass) -> None:
    assert classify(name, model=False) is state


def test_a_warm_start_brings_weights_and_batch_norm_statistics_only() -> None:
    assert {StateClass.WEIGHT, StateClass.BATCH_NORM} == WARM_STARTED


def test_a_variable_is_known_by_the_name_of_its_tensor() -> None:
    spec = VariableSpec(TensorSpec("a/b", (2,), "float32"), StateClass.WEIGHT, True, "zeros")
    assert (spec.name, spec.frozen) == ("a/b", False)
