"""A run on two devices is that of one, whatever happens in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config.choices import NonFinite
from runner.config.schema import DevicesConfig, NonFiniteConfig, TrainConfig
from runner.errors import UserCodeError
from tests.support.runs import Runs, disturbed

LENGTH = 5
ROLLBACK = NonFiniteConfig(NonFinite["rollback"], learning_rate_scale=0.1)
HALVE = {"_target_": "tests.samples.keras_callbacks.Halve"}
FALLING = {
    "_target_": "keras.callbacks.LearningRateScheduler",
    "schedule": {"_target_": "tests.samples.keras_callbacks.falling", "_partial_": True},
}
EPOCHS: dict[str, Any] = {"epochs": 4, "steps_per_epoch": LENGTH, "log_every": LENGTH}


def experiment(**changes: Any) -> dict[str, Any]:
    """Returns the changes of a configuration in float64, with batches that do not divide evenly."""
    return {
        "data": {"_target_": "tests.samples.experiment.Blobs", "batch_size": 7, "seed": 0},
        "model": {"_target_": "tests.samples.odd.Plain", "dtype_policy": "float64"},
        "optimizer": {"_target_": "keras.optimizers.Adam", "learning_rate": 0.01},
        "loss": {"_target_": "keras.losses.SparseCategoricalCrossentropy", "from_logits": True},
        **changes,
    }


def train(**changes: Any) -> TrainConfig:
    return TrainConfig(**{**EPOCHS, "checkpoint_every": 3, **changes})


def hook(name: str, step: int, folder: Path) -> dict[str, Any]:
    return disturbed(name, step=step, marker=str(folder.with_suffix(".marker")))


CASES: dict[str, dict[str, Any]] = {
    "callbacks": {"callbacks": {"halve": HALVE, "falling": FALLING}},
    "rolled back": {"train": train(non_finite=ROLLBACK), "hook": "SpoilOnce"},
    "recovered": {"hook": "AbortOnce"},
}


def run(folder: Path, count: int, **changes: Any) -> Runs:
    """Returns the runs of a folder, after one that ended."""
    name = changes.pop("hook", "")
    hooks = hook(name, 8, folder) if name else {}
    devices = DevicesConfig(count)
    runs = Runs(folder, **experiment(train=train()), devices=devices, hooks=hooks)
    runs.shown(**changes)
    return runs


def require_equal(runs: Runs, other: Runs, tolerance: float = 1e-6) -> None:
    values, expected = runs.values(), other.values()
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray | np.number):
            np.testing.assert_allclose(values[name], value, tolerance, tolerance, err_msg=name)


# Keras converts variables by `np.array(..., copy=False)`.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    "case",
    [
        "callbacks",
        *(pytest.param(case, marks=pytest.mark.soak) for case in CASES if case != "callbacks"),
    ],
)
def test_two_devices_follow_what_changes_values_between_steps(case: str, tmp_path: Path) -> None:
    several, one = (run(tmp_path / str(count), count, **CASES[case]) for count in (2, 1))
    require_equal(several, one)


def test_a_run_that_fails_resumes_on_another_number_of_devices(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 2)
    for count in (2, 1):
        folder = tmp_path / str(count)
        with pytest.raises(UserCodeError, match="the hook failed"):
            run(folder, 2, hook="FailOnce")
        resumed = run(folder, count, hook="FailOnce")
        require_equal(resumed, whole, 0 if count == 2 else 1e-6)
