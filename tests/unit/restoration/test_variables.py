"""What the planner knows of a variable."""

from __future__ import annotations

import pytest

from runner.restoration.variables import Partition, StateClass, classify
from tests.tiny.plans import variable


def test_a_part_is_known_by_its_whole() -> None:
    whole = variable("emb", (5, 2))
    assert (whole.full_name, whole.full_shape) == ("emb", (5, 2))
    part = variable("emb/part_0", (3, 2), partition=Partition("emb", (5, 2), (0, 0)))
    assert (part.name, part.full_name) == ("emb/part_0", "emb")
    assert (part.tensor.shape, part.full_shape) == ((3, 2), (5, 2))


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
