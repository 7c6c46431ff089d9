"""A step in a pool of threads or in the caller's: `python -m benchmarks.caller_thread`.

`--starts 100` counts how often the choice is right, in sessions of `--processes` processes,
and with `--busy` other processes that compute meanwhile.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import runner
from benchmarks.harness import Result, compare, options, report, shown
from runner.internals.tensorflow import Step, prepare_step
from runner.session.short_step import BLOCK, LONGEST_S, PAUSES, ROUNDS, SAMPLES, ShortStep

SLICE_S = 0.02
# Between two steps of a start, as hooks take it: without it, a pipeline would set the pace.
PAUSE_S = 50e-6
# The session takes the number of threads as it is; to TensorFlow, -1 means the caller's thread.
POOL, CALLER, CHOSEN = "pool", "caller", "chosen"
# Calls of a look.
LOOK = SAMPLES + 2 * ROUNDS * BLOCK
# Slices that tell which way is faster, and what counts as a tie.
SLICES, LONG_SLICE_S, TIE = 5, 0.1, 1.05
# The steps that start, with those whose ways differ least.
STARTED = ("tiny", "from a pipeline", "chain of 20 products of 64", "8 products of 128")


def tiny() -> Any:
    """32x64 times 64x64 with gradient descent."""
    weights = tf.get_variable("weights", [64, 64])
    loss = tf.reduce_mean((tf.constant(np.ones([32, 64], np.float32)) @ weights - 1.0) ** 2)
    return loss, tf.train.GradientDescentOptimizer(0.01).minimize(loss)


def from_pipeline() -> Any:
    """32x32 times 32x32 with gradient descent, on prefetched batches."""
    numbers = np.random.default_rng(0).normal(size=[3200, 32]).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices(numbers).shuffle(3200, seed=1).repeat()
    batches = data.batch(32, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    iterator = tf.data.make_initializable_iterator(batches)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    weights = tf.get_variable("weights", [32, 32])
    loss = tf.reduce_mean((iterator.get_next() @ weights - 1.0) ** 2)
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
    "from a pipeline": from_pipeline,
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
        initializer = tf.group(tf.global_variables_initializer(), tf.tables_initializer())
        timers: dict[str, Callable[[], float]] = {}
        for way, number in threads.items():
            config = tf.ConfigProto(inter_op_parallelism_threads=number)
            session = runner.CachedSession(config=config)
            session.run(initializer)
            for _ in range(LOOK + 10):
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


class Start:
    """A step in a fresh session, which chooses its thread."""

    def __init__(self, name: str) -> None:
        self._used = False
        with tf.Graph().as_default():
            fetches = tf.nest.flatten(STEPS[name]())
            session = self._session = tf.Session()
            session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        self._tensors = [fetch for fetch in fetches if isinstance(fetch, tf.Tensor)]
        self._targets = [fetch for fetch in fetches if not isinstance(fetch, tf.Tensor)]
        self._ways = {inline: self._prepare(inline) for inline in (False, True)}

    def _prepare(self, inline: bool) -> Step:
        step = prepare_step(self._session, [], self._tensors, self._targets, inline=inline)

        def noting(*values: Any) -> list[Any]:
            self._used = inline
            return step(*values)

        return noting

    def looks(self) -> list[bool]:
        """Returns after each of three looks whether the way chosen is the faster, or they tie."""
        step = ShortStep(self._ways.__getitem__, lambda: False)
        chosen = []
        for pause in (0, *PAUSES[:2]):
            for _ in range(pause + LOOK + 1):
                wait()
                step()
            chosen.append(self._used)
        medians = self._medians()
        self._session.close()
        return [medians[way] <= TIE * medians[not way] for way in chosen]

    def _medians(self) -> dict[bool, float]:
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(SLICES):
            for way, so_far in times.items():
                end = time.perf_counter() + LONG_SLICE_S
                while time.perf_counter() < end:
                    start = wait()
                    self._ways[way]()
                    so_far.append(time.perf_counter() - start)
        return {way: statistics.median(so_far) for way, so_far in times.items()}


def wait() -> float:
    """Computes for `PAUSE_S`; returns when that ended."""
    end = time.perf_counter() + PAUSE_S
    while (now := time.perf_counter()) < end:
        pass
    return now


def right(name: str, starts: int) -> list[list[bool]]:
    """Returns for each start whether the choice was right after each look."""
    tf.get_logger().setLevel("ERROR")
    return [Start(name).looks() for _ in range(starts)]


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keeps processors busy meanwhile."""
    program = [sys.executable, "-c", "while True: sum(range(1000))"]
    running = [subprocess.Popen(program) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()


def wrong_starts(starts: int, processes: int, beside: int) -> list[Result]:
    """Returns the share of wrong choices after each look."""
    results: list[Result] = []
    with busy(beside):
        for name in STARTED:
            looks: list[list[bool]] = []
            for _ in range(processes):
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    looks += pool.submit(right, name, starts // processes).result()
            case = f"{name}, {len(looks)} starts beside {beside}"
            for number, chosen in enumerate(zip(*looks, strict=True), 1):
                share = 100 * (1 - sum(chosen) / len(chosen))
                results += shown([Result(case, f"wrong after look {number}", "%", (share,))])
    return results


def main() -> int:
    """Prints the ways of every step side by side, or how often the choice is wrong."""
    parser = options(__doc__, repeats=25)
    parser.add_argument("--starts", type=int, default=0, help="starts of each step")
    parser.add_argument("--processes", type=int, default=5, help="for the starts")
    parser.add_argument("--busy", type=int, default=0, help="processes beside the starts")
    arguments = parser.parse_args()
    if arguments.starts:
        results = wrong_starts(arguments.starts, arguments.processes, arguments.busy)
        return report(results, arguments.json)
    tf.get_logger().setLevel("ERROR")
    print(f"steps over {LONGEST_S * 1e6:g} us keep to the pool")
    results = []
    for name, build in STEPS.items():
        results += compare(name, "us", ways(build), {}, arguments.repeats)
    return report(results, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
