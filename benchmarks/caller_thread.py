"""A step in a pool of threads or in the caller's: `python -m benchmarks.caller_thread`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import runner
from benchmarks.harness import Result, compare, options, report
from runner.session.cached_session import LONGEST_S, SAMPLES

SLICE_S = 0.02
# The session takes the number of threads as it is; to TensorFlow, -1 means the caller's thread.
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
    """A chain of products of matrices."""

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


def ways(build: Callable[[], Any]) -> dict[str, Callable[[], float]]:
    """Returns way -> a function that times the step, in microseconds."""
    threads = {POOL: os.cpu_count() or 1, CALLER: -1, CHOSEN: 0}
    with tf.Graph().as_default():
        fetches = build()
        initializer = tf.global_variables_initializer()
        timers: dict[str, Callable[[], float]] = {}
        for way, number in threads.items():
            config = tf.ConfigProto(inter_op_parallelism_threads=number)
            session = runner.CachedSession(config=config)
            session.run(initializer)
            for _ in range(2 * SAMPLES + 10):
                session.run(fetches)
            timers[way] = partial(slice_of_steps, session, fetches)
    return timers


def slice_of_steps(session: tf.Session, fetches: Any) -> float:
    """Returns microseconds per step over a fixed time."""
    start = now = time.perf_counter()
    steps = 0
    while now < start + SLICE_S:
        session.run(fetches)
        steps += 1
        now = time.perf_counter()
    return (now - start) / steps * 1e6


def main() -> int:
    """Prints the ways of every step side by side."""
    arguments = options(__doc__, repeats=25).parse_args()
    tf.get_logger().setLevel("ERROR")
    print(f"steps over {LONGEST_S * 1e6:g} us keep to the pool")
    results: list[Result] = []
    for name, build in STEPS.items():
        results += compare(name, "us", ways(build), {}, arguments.repeats)
    return report(results, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
