"""Compares `fit` and runs on data that use a variable of another device: a logical CPU for a GPU.

`python -m tests.samples.other_device FOLDER`; a process has the logical devices it begins with.
"""

from __future__ import annotations

import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import runner
from runner.errors import InterruptedRunError
from tests.keras_io.constructs import X, Y, dataset, dense
from tests.support.runs import disturbed


def data(*, shuffled: bool) -> tf.data.Dataset:
    with tf.device("/cpu:1"):
        noise = keras.layers.GaussianNoise(0.1, seed=3)
    examples = tf.data.Dataset.from_tensor_slices((X, Y))
    examples = examples.shuffle(20, seed=2) if shuffled else examples
    return examples.batch(8).map(lambda x, y: (noise(x, training=True), y)).prefetch(2)


def compiled() -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    return dense()


def by_run(folder: Path, *, shuffled: bool, **changes: Any) -> keras.Model:
    model = compiled()
    overrides = {"run_dir": str(folder), "tracking.uri": None, **changes}
    arguments = {"validation_data": dataset(), "epochs": 3, "name": "case", "verbose": 0}
    runner.fit(model, data(shuffled=shuffled), **arguments, overrides=overrides)
    return model


def compare(folder: Path, *, shuffled: bool) -> None:
    fitted = compiled()
    fitted.fit(data(shuffled=shuffled), validation_data=dataset(), epochs=3, verbose=0)
    whole = by_run(folder / "whole", shuffled=shuffled)
    marker = str(folder / "sent")
    hook = disturbed("SignalOnce", step=8, number=int(signal.SIGINT), marker=marker)["disturb"]
    changes = {"+hooks.disturb": hook}
    try:
        by_run(folder / "killed", shuffled=shuffled, **changes)
    except InterruptedRunError:
        resumed = by_run(folder / "killed", shuffled=shuffled, **changes)
    for expected, *values in zip(*(m.get_weights() for m in (fitted, whole, resumed)), strict=True):
        for value in values:
            np.testing.assert_array_equal(value, expected)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    for shuffled in (False, True):
        compare(Path(sys.argv[1]) / str(shuffled), shuffled=shuffled)
