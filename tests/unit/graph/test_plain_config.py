"""Keras objects are recorded by their class and arguments, whatever their `get_config` returns."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras.optimizers import schedules

from runner.graph.plain_config import plain


class Odd(keras.layers.Layer):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self._config = config

    def get_config(self) -> Any:
        if self._config is NotImplementedError:
            raise NotImplementedError
        return self._config


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Odd({"units": 3, "left_out": None}), {"_target_": f"{__name__}.Odd", "units": 3}),
        (Odd(None), {"_target_": f"{__name__}.Odd"}),
        (Odd(NotImplementedError), {"_target_": f"{__name__}.Odd"}),
        (Odd, f"{__name__}.Odd"),
        (
            schedules.ExponentialDecay(0.1, 10, 0.5, staircase=True),
            {
                "_target_": "keras.optimizers.schedules.ExponentialDecay",
                "initial_learning_rate": 0.1,
                "decay_steps": 10,
                "decay_rate": 0.5,
                "staircase": True,
            },
        ),
        (keras.losses.MeanSquaredError, "keras.losses.MeanSquaredError"),
        (float(np.float32(0.1)), 0.1),
        (1e40, 1e40),
        (keras.losses.mean_squared_error, "keras.losses.mean_squared_error"),
    ],
)
def test_an_object_is_recorded_by_what_it_is_made_from(value: Any, expected: Any) -> None:
    assert plain(value) == expected
