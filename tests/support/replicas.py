"""Starts a model on two replicas from a `.npz` file, and checks the values of both.

It is a process of its own: TensorFlow's devices are divided before their first use.
"""

from __future__ import annotations

import sys

import keras
import numpy as np
import tensorflow as tf

import runner


def main(source: str) -> None:
    """Starts the head from `source`, an array file with `head/kernel` of 3 x 2."""
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, devices)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="head")])
        model.compile("adam")
    optimizer = model.optimizer
    scaffold = {"variables": {"include": ["head/*"]}, "checkpoint": source}
    restoration = {"verify": True}
    runner.warm_start(model, {"head": scaffold}, optimizer=optimizer, restoration=restoration)
    kernel = model.variables[0].value
    kernels = [value.numpy() for value in strategy.experimental_local_results(kernel)]
    assert len(kernels) == 2
    wanted = np.load(source)["head/kernel"]
    assert all(np.array_equal(value, wanted) for value in kernels)
    slots = {type(variable.value).__name__ for variable in optimizer.variables[2:]}
    assert slots == {"MirroredVariable"}


if __name__ == "__main__":
    main(sys.argv[1])
