"""What a monitored training step costs on a tiny graph, against TensorFlow's sessions."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow.compat.v1 as tf

import runner
from runner.hooks import MetricsHook
from runner.tracking import RunStatus, Tracker
from runner.tracking.mlflow_tracker import MlflowStore

BATCH, WIDTH = 32, 64
# The step that never comes.
NEVER = 10**12
MORE_HOOKS = 8
SLICES = 20


@dataclass(frozen=True)
class Ratio:
    """A figure to reach: one way's time over another's, in parts of 1."""

    name: str
    way: str
    over: str
    at_most: float


class Graph:
    """32x64 times 64x64 with gradient descent, on a constant or a fed batch."""

    def __init__(self, fed: bool) -> None:
        self.batch = np.random.default_rng(0).normal(size=(BATCH, WIDTH)).astype(np.float32)
        shape = [None, WIDTH]
        self.x = tf.placeholder(tf.float32, shape) if fed else tf.constant(self.batch)
        weights = tf.get_variable("weights", [WIDTH, WIDTH])
        self.loss = tf.reduce_mean((tf.matmul(self.x, weights) - 1.0) ** 2)
        self.step = tf.train.get_or_create_global_step()
        self.train_op = tf.train.GradientDescentOptimizer(0.01).minimize(self.loss, self.step)
        with tf.control_dependencies([self.train_op]):
            self.step_after = tf.identity(self.step.read_value())
        self.feed = {self.x: self.batch} if fed else None


class FetchesLoss(tf.train.SessionRunHook):
    """The least that a hook of use does: asks for a tensor and looks at it."""

    def __init__(self, loss: tf.Tensor) -> None:
        self._loss = loss
        self.latest = 0.0

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Asks."""
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: tf.train.SessionRunValues) -> None:
        """Looks."""
        self.latest = run_values.results


def four_hooks(graph: Graph, directory: Path, tracker: Tracker) -> list[tf.train.SessionRunHook]:
    """Stop at a step, watch for NaN, count the steps per second, hand the loss to tracking."""

    def record(values: Mapping[str, float], step: int) -> None:
        tracker.log_metrics(values, step)

    return [
        tf.train.StopAtStepHook(last_step=NEVER),
        tf.train.NanTensorHook(graph.loss),
        tf.train.StepCounterHook(100, output_dir=str(directory)),
        MetricsHook({"loss": graph.loss}, graph.step_after, 1, record),
    ]


class Recording(tf.Session):
    """Remembers what a MonitoredSession asks for, not what its hooks ask for themselves."""

    fetches: Any = None

    def run(self, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes and runs."""
        if isinstance(fetches, dict) and "caller" in fetches:
            self.fetches = fetches
        return super().run(fetches, *args, **kwargs)


class RecordingCreator(tf.train.SessionCreator):
    """Gives a session whose requests can be read."""

    def create_session(self) -> tf.Session:
        """Returns the session, initialised."""
        self.session = Recording()
        self.session.run(tf.global_variables_initializer())
        return self.session


def merged_fetches(graph: Graph, hooks: Sequence[tf.train.SessionRunHook]) -> Any:
    """Returns the fetches of caller and hooks, as MonitoredSession asks for them in one run."""
    creator = RecordingCreator()
    with tf.train.MonitoredSession(creator, hooks) as session:
        session.run(graph.train_op, graph.feed)
        return creator.session.fetches


def time_steps(step: Callable[[], object], steps: int) -> float:
    """Returns microseconds per step."""
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps * 1e6


class Bench:
    """All ways side by side in one process, timed in turn, a slice of the steps at a time.

    A repeat's time is the median of its slices, so that what else the machine does in between
    does not meet one way alone.
    """

    def __init__(self, directory: Path, steps: int) -> None:
        self._directory, self._steps = directory, steps
        # What is handed over while steps are timed is delivered afterwards.
        self._store = MlflowStore(f"sqlite:///{directory}/mlflow.db", interval=3600)
        self._ways: dict[str, Callable[[], object]] = {}
        self._open = ExitStack()
        self.times: dict[str, list[float]] = {}

    def add_bare(self, name: str, fed: bool, hooked: bool) -> None:
        """Adds `Session.run` of what the monitored sessions fetch, and `CachedSession.run`."""
        with tf.Graph().as_default():
            graph = Graph(fed)
            hooks = four_hooks(graph, self._directory, self._tracker(name)) if hooked else []
            fetches = merged_fetches(graph, hooks)
            for way, kind in ((name, tf.Session), (f"cached {name}", runner.CachedSession)):
                session = self._open.enter_context(kind())
                session.run(tf.global_variables_initializer())
                self._ways[way] = partial(session.run, fetches, graph.feed)

    def add_monitored(self, name: str, api: Any, fed: bool, more_hooks: int = 0) -> None:
        """Adds a MonitoredTrainingSession with four hooks, and perhaps more."""
        with tf.Graph().as_default() as default:
            graph = Graph(fed)
            hooks = four_hooks(graph, self._directory, self._tracker(name))
            hooks += [FetchesLoss(graph.loss) for _ in range(more_hooks)]
            session = api.MonitoredTrainingSession(hooks=hooks)
            self._open.callback(close_in, default, session)
            self._ways[name] = partial(session.run, graph.train_op, graph.feed)

    def _tracker(self, name: str) -> Tracker:
        tracker = self._store.start("benchmark", name, {})
        self._open.callback(tracker.close, RunStatus.FINISHED)
        return tracker

    def add_all(self) -> None:
        """Adds every way."""
        for fed in (False, True):
            suffix = ", fed" if fed else ""
            self.add_bare(f"Session.run{suffix}", fed, hooked=True)
            self.add_monitored(f"tensorflow{suffix}", tf.train, fed)
            self.add_monitored(f"runner{suffix}", runner, fed)
        self.add_bare("Session.run of the train op, fed", fed=True, hooked=False)
        self.add_monitored("tensorflow, 12 hooks", tf.train, False, MORE_HOOKS)
        self.add_monitored("runner, 12 hooks", runner, False, MORE_HOOKS)

    def run(self, repeats: int) -> None:
        """Times every way in every repeat."""
        for step in self._ways.values():
            time_steps(step, 200)
        for _ in range(repeats):
            slices: dict[str, list[float]] = {name: [] for name in self._ways}
            for _ in range(SLICES):
                for name, step in self._ways.items():
                    slices[name].append(time_steps(step, self._steps // SLICES))
            for name, times in slices.items():
                self.times.setdefault(name, []).append(statistics.median(times))

    def close(self) -> None:
        """Closes the sessions and delivers what was tracked."""
        self._open.close()


def delivering(directory: Path, api: Any, seconds: float) -> float:
    """Returns microseconds per step while another thread writes what is tracked to the store."""
    tracker = MlflowStore(f"sqlite:///{directory}/mlflow.db").start("benchmark", "delivering", {})
    with tf.Graph().as_default():
        graph = Graph(fed=False)
        hooks = four_hooks(graph, directory, tracker)
        with api.MonitoredTrainingSession(hooks=hooks) as session:
            step = partial(session.run, graph.train_op)
            time_steps(step, 200)
            start, steps = time.perf_counter(), 0
            while time.perf_counter() < start + seconds:
                time_steps(step, 500)
                steps += 500
            taken = time.perf_counter() - start
    tracker.close(RunStatus.FINISHED)
    return taken / steps * 1e6


def report_delivering(directory: Path) -> None:
    """Prints what the main figures leave out: the store's thread needs the interpreter too."""
    ways = {"tensorflow": tf.train, "runner": runner}
    found = {name: delivering(directory, api, seconds=5) for name, api in ways.items()}
    print("microseconds per step over 5 s, every loss written to SQLite meanwhile")
    for name, value in found.items():
        print(f"  {name:48} {value:7.1f}")
    print(f"  {'ratio':48} {found['runner'] / found['tensorflow']:7.3f}")


def close_in(graph: tf.Graph, session: tf.train.MonitoredSession) -> None:
    """Closes a session whose graph is not the default one."""
    with graph.as_default():
        session.close()


RATIOS = [
    Ratio("4 hooks, loss tracked, over bare", "runner", "Session.run", 0.35),
    Ratio("4 hooks, loss tracked, over TensorFlow's", "runner", "tensorflow", 0.2),
    Ratio("fed, 4 hooks, over bare", "runner, fed", "Session.run, fed", 0.35),
    Ratio("fed, 4 hooks, over TensorFlow's", "runner, fed", "tensorflow, fed", 0.2),
    Ratio(
        "fed, no hooks, over bare",
        "cached Session.run of the train op, fed",
        "Session.run of the train op, fed",
        0.35,
    ),
]


def report(times: Mapping[str, Sequence[float]]) -> bool:
    """Prints medians and ratios; says whether all figures were reached."""
    medians = {way: statistics.median(each) for way, each in times.items()}
    print(f"{'microseconds per step, median':58} lowest to highest")
    for way, each in times.items():
        print(f"  {way:48} {medians[way]:7.1f}   {min(each):.1f} to {max(each):.1f}")
    print("ratios: median of the repeats")
    reached = True
    for ratio in RATIOS:
        pairs = zip(times[ratio.way], times[ratio.over], strict=True)
        reached &= show(ratio.name, [way / over for way, over in pairs], ratio.at_most)
    per_hook = [
        (more - four) / MORE_HOOKS / base
        for more, four, base in zip(
            times["runner, 12 hooks"], times["runner"], times["Session.run"], strict=True
        )
    ]
    return show("each further hook, over bare", per_hook, 0.03) and reached


def show(name: str, values: Sequence[float], at_most: float) -> bool:
    """Prints one ratio beside what it should be."""
    value = statistics.median(values)
    mark = "reached" if value <= at_most else "NOT reached"
    spread = f"{min(values):.3f} to {max(values):.3f}"
    print(f"  {name:48} {value:7.3f}   at most {at_most:g}: {mark} ({spread})")
    return value <= at_most


def main() -> int:
    """Returns 1 when a figure is not reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4000, help="timed steps in each repeat")
    arguments = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory), arguments.steps)
        bench.add_all()
        bench.run(arguments.repeats)
        bench.close()
        report_delivering(Path(directory))
    return 0 if report(bench.times) else 1


if __name__ == "__main__":
    sys.exit(main())
