"""A step's operations in TensorFlow's pool of threads against the caller's, and what is chosen."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow.compat.v1 as tf

import runner
from runner.session.caller_thread import LONGEST_S, SAMPLES, WARM_UP

REPEATS = 15
SLICE_S = 0.02
# A number of threads is obeyed as given: -1 is TensorFlow's own way to say the caller's thread.
POOL, CALLER, CHOSEN = "pool", "caller", "chosen"


def tiny() -> Any:
    """32x64 times 64x64 with gradient descent."""
    weights = tf.get_variable("weights", [64, 64])
    loss = tf.reduce_mean((tf.constant(np.ones([32, 64], np.float32)) @ weights - 1.0) ** 2)
    return loss, tf.train.GradientDescentOptimizer(0.01).minimize(loss)


def wide(count: int, size: int) -> Callable[[], Any]:
    """Products of matrices that do not depend on one another."""

    def build() -> Any:
        matrices = [tf.get_variable(f"matrix{index}", [size, size]) for index in range(count)]
        return tf.add_n([tf.reduce_sum(tf.tanh(matrix @ matrix)) for matrix in matrices])

    return build


def chain(count: int, size: int) -> Callable[[], Any]:
    """Products of matrices of which each needs the one before."""

    def build() -> Any:
        matrix = tf.get_variable("matrix", [size, size])
        product = matrix.read_value()
        for _ in range(count):
            product = tf.tanh(product @ matrix)
        return tf.reduce_sum(product)

    return build


def layers(size: int) -> Callable[[], Any]:
    """Four dense layers with Adam."""

    def build() -> Any:
        values = tf.random.normal([64, size])
        for index in range(4):
            values = tf.nn.relu(values @ tf.get_variable(f"layer{index}", [size, size]))
        loss = tf.reduce_mean(values**2)
        return loss, tf.train.AdamOptimizer().minimize(loss)

    return build


STEPS: dict[str, Callable[[], Any]] = {
    "tiny": tiny,
    "8 products of 32": wide(8, 32),
    "8 products of 128": wide(8, 128),
    "8 products of 256": wide(8, 256),
    "64 products of 64": wide(64, 64),
    "chain of 20 products of 64": chain(20, 64),
    "4 layers of 64": layers(64),
    "4 layers of 256": layers(256),
}


def compare(build: Callable[[], Any]) -> dict[str, float]:
    """Returns the median time of a step, in microseconds, for each way."""
    threads = {POOL: os.cpu_count() or 1, CALLER: -1, CHOSEN: 0}
    with tf.Graph().as_default():
        fetches = build()
        sessions = {
            way: runner.CachedSession(config=tf.ConfigProto(inter_op_parallelism_threads=number))
            for way, number in threads.items()
        }
        initializer = tf.global_variables_initializer()
    for session in sessions.values():
        session.run(initializer)
        for _ in range(WARM_UP + 2 * SAMPLES + 10):
            session.run(fetches)
    start = time.perf_counter()
    sessions[POOL].run(fetches)
    count = max(3, int(SLICE_S / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {way: [] for way in sessions}
    for _ in range(REPEATS):
        for way, session in sessions.items():
            start = time.perf_counter()
            for _ in range(count):
                session.run(fetches)
            times[way].append((time.perf_counter() - start) / count * 1e6)
    for session in sessions.values():
        session.close()
    return {way: statistics.median(each) for way, each in times.items()}


def main() -> int:
    """Prints the ways of every step side by side."""
    tf.get_logger().setLevel("ERROR")
    print(f"microseconds per step, median of {REPEATS}")
    print(f"steps over {LONGEST_S * 1e6:g} microseconds keep to the pool")
    print(f"{'':30} {'pool':>9} {'caller':>9} {'chosen':>9}   chosen over the better")
    for name, build in STEPS.items():
        found = compare(build)
        best = min(found[POOL], found[CALLER])
        columns = " ".join(f"{found[way]:9.1f}" for way in (POOL, CALLER, CHOSEN))
        print(f"{name:30} {columns}   {found[CHOSEN] / best:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
