"""Times a step on a tiny graph: `python -m benchmarks.monitored_step`."""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow.compat.v1 as tf

import runner
from benchmarks.harness import Result, compare, options, report, shown
from benchmarks.keras_fit import Fit
from benchmarks.tracking import opened
from runner.hooks import MetricsHook
from runner.system.status import Status
from runner.tracking import Tracker

BATCH, WIDTH, PIPELINE_WIDTH = 32, 64, 32
# Where the batch comes from.
PIPELINE, CONSTANT, FED = "tf.data, prefetched", "constant batch", "NumPy batch fed"
# The step that never comes.
NEVER = 10**12
# Steps before the first one that is timed: the session has looked twice for the faster thread.
WARM_UP = 2500
MORE_HOOKS = 8
MORE = f"runner, {4 + MORE_HOOKS} hooks"
UNIT = "us"


def batches() -> tf.data.Dataset:
    """Returns shuffled batches without end: features and labels, both 32x32."""
    features = np.random.default_rng(0).normal(size=[100 * BATCH, PIPELINE_WIDTH])
    pairs = (features.astype(np.float32), np.ones(features.shape, np.float32))
    data = tf.data.Dataset.from_tensor_slices(pairs).shuffle(len(features), seed=1).repeat()
    return data.batch(BATCH, drop_remainder=True)


class Graph:
    """A product of matrices with gradient descent: 32x64 times 64x64, from a pipeline 32x32."""

    def __init__(self, source: str, of_runner: bool = False) -> None:
        self.feed = None
        labels: Any = 1.0
        if source == PIPELINE:
            iterator: Any = tf.data.make_initializable_iterator(
                batches().prefetch(tf.data.AUTOTUNE)
            )
            batch = iterator.get_next()
            if of_runner:
                iterator = runner.TrainingInput(batches(), prefetch=True)
                batch, _ = iterator.next()
            tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            features, labels = batch
        else:
            batch = np.random.default_rng(0).normal(size=(BATCH, WIDTH)).astype(np.float32)
            features = tf.constant(batch)
            if source == FED:
                features = tf.placeholder(tf.float32, [None, WIDTH])
                self.feed = {features: batch}
        weights = tf.get_variable("weights", [features.shape[1]] * 2)
        self.loss = tf.reduce_mean((tf.matmul(features, weights) - labels) ** 2)
        self.step = tf.train.get_or_create_global_step()
        self.train_op = tf.train.GradientDescentOptimizer(0.01).minimize(self.loss, self.step)
        with tf.control_dependencies([self.train_op]):
            self.step_after = tf.identity(self.step.read_value())


def initialise(session: tf.Session) -> None:
    """Initialises the default graph."""
    session.run([tf.global_variables_initializer(), tf.tables_initializer()])


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
        initialise(self.session)
        return self.session


def merged_fetches(graph: Graph, hooks: Sequence[tf.train.SessionRunHook]) -> Any:
    """Returns the fetches of caller and hooks, as MonitoredSession asks for them in one run."""
    creator = RecordingCreator()
    with tf.train.MonitoredSession(creator, hooks) as session:
        session.run(graph.train_op, graph.feed)
        return creator.session.fetches


def time_steps(step: Callable[[], object], calls: int, steps: int = 1) -> float:
    """Returns microseconds per step, of which a call takes `steps`."""
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / (calls * steps) * 1e6


class Ways:
    """Sessions side by side in one process, and for each a function that times some steps.

    Their journals have no follower.
    """

    def __init__(self, directory: Path, steps: int) -> None:
        self._directory, self._steps = directory, steps
        self._numbers = itertools.count()
        self._open = ExitStack()

    def __enter__(self) -> Ways:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def bare(self, kind: type[tf.Session], source: str) -> Callable[[], float]:
        """Runs in one `run` what caller and hooks of the monitored sessions fetch."""
        with tf.Graph().as_default():
            graph = Graph(source)
            fetches = merged_fetches(graph, four_hooks(graph, self._directory, self._tracker()))
            session = self._open.enter_context(kind())
            initialise(session)
        return self._timed(partial(session.run, fetches, graph.feed))

    def monitored(
        self, api: Any, source: str, more_hooks: int = 0, *, of_runner: bool = False
    ) -> Callable[[], float]:
        """Runs the train op in a MonitoredTrainingSession with four hooks, and perhaps more."""
        with tf.Graph().as_default() as default:
            graph = Graph(source, of_runner)
            hooks = four_hooks(graph, self._directory, self._tracker())
            hooks += [FetchesLoss(graph.loss) for _ in range(more_hooks)]
            session = api.MonitoredTrainingSession(hooks=hooks)
            self._open.callback(close_in, default, session)
        return self._timed(partial(session.run, graph.train_op, graph.feed))

    def fit(self) -> Callable[[], float]:
        """Trains the same model on the same pipeline, without any hook or recording."""
        model = keras.Sequential([keras.layers.Dense(PIPELINE_WIDTH, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=1)
        fit = Fit(model, batches)
        self._open.callback(fit.close)
        fit.steps(WARM_UP)
        return partial(time_steps, partial(fit.steps, self._steps), 1, self._steps)

    def _tracker(self) -> Tracker:
        folder = self._directory / f"run-{next(self._numbers)}"
        tracker = opened(folder, f"sqlite:///{self._directory}/mlflow.db")
        self._open.callback(tracker.close, Status.FINISHED)
        return tracker

    def _timed(self, step: Callable[[], object]) -> Callable[[], float]:
        time_steps(step, WARM_UP)
        return partial(time_steps, step, self._steps)


def measure(directory: Path, repeats: int, steps: int) -> list[Result]:
    """Returns the results of all ways, and their ratios."""
    results: list[Result] = []
    with Ways(directory, steps) as ways:
        for case in (PIPELINE, CONSTANT, FED):
            theirs, ours = "tensorflow, 4 hooks", "runner, 4 hooks"
            timed = {
                "Session.run": ways.bare(tf.Session, case),
                "CachedSession.run": ways.bare(runner.CachedSession, case),
                theirs: ways.monitored(tf.train, case),
                ours: ways.monitored(runner, case, of_runner=True),
                MORE: ways.monitored(runner, case, MORE_HOOKS, of_runner=True),
            }
            if case == PIPELINE:
                timed["runner, TensorFlow's iterator"] = ways.monitored(runner, case)
                timed["keras.Model.fit"] = ways.fit()
            limits = {} if case == PIPELINE else {"CachedSession.run": 0.35, ours: 0.35}
            taken = {way.way: way for way in compare(case, UNIT, timed, limits, repeats)}
            results += taken.values()
            limit = 0.35 if case == PIPELINE else 0.2
            title = f"{case}, over TensorFlow's"
            results += shown([over(title, taken[ours], taken[theirs], limit)])
            if case == PIPELINE:
                fit = taken["keras.Model.fit"]
                results += shown([over(f"{case}, over fit", taken[ours], fit, 1.0)])
            pairs = zip(taken[MORE].values, taken[ours].values, strict=True)
            times = tuple((with_more - four) / MORE_HOOKS for with_more, four in pairs)
            further = Result(f"{case}, over Session.run", "each further hook", UNIT, times)
            results += shown([over(further.case, further, taken["Session.run"], 0.03)])
    return results


def over(case: str, way: Result, base: Result, limit: float) -> Result:
    """Returns the result with its ratio over another."""
    ratio = way.median / base.median
    return Result(case, way.way, way.unit, way.values, ratio, limit)


def delivering(directory: Path, api: Any, seconds: float) -> float:
    """Returns microseconds per step while another process writes what is tracked to the store."""
    folder = Path(tempfile.mkdtemp(dir=directory))
    tracker = opened(folder, f"sqlite:///{directory}/mlflow.db", followed=True, seconds=60.0)
    with tf.Graph().as_default():
        graph = Graph(CONSTANT)
        hooks = four_hooks(graph, directory, tracker)
        with api.MonitoredTrainingSession(hooks=hooks) as session:
            step = partial(session.run, graph.train_op)
            time_steps(step, WARM_UP)
            start, steps = time.perf_counter(), 0
            while time.perf_counter() < start + seconds:
                time_steps(step, 500)
                steps += 500
            taken = time.perf_counter() - start
    tracker.close(Status.FINISHED)
    return taken / steps * 1e6


def close_in(graph: tf.Graph, session: tf.train.MonitoredSession) -> None:
    """Closes a session whose graph is not the default one."""
    with graph.as_default():
        session.close()


def main() -> int:
    """Prints the results; returns 1 when a limit is missed."""
    parser = options(__doc__, repeats=30)
    # In turns of 200, a step of constant input takes half as long again: each way finds its threads
    # asleep and the processor's cache full of the other ways.
    parser.add_argument("--steps", type=int, default=1000, help="timed steps per repeat")
    parser.add_argument("--seconds", type=float, default=5, help="for the ways that deliver")
    arguments = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        results = measure(directory, arguments.repeats, arguments.steps)
        # What these figures leave out: the process that delivers needs a core too.
        results += compare(
            "every loss written to SQLite meanwhile",
            UNIT,
            {
                "tensorflow, 4 hooks": partial(delivering, directory, tf.train, arguments.seconds),
                "runner, 4 hooks": partial(delivering, directory, runner, arguments.seconds),
            },
            {},
            repeats=3,
        )
    return report(results, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
