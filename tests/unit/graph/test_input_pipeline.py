"""The training input: the state that checkpoints hold, the state they lack, prefetching."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import config as framework_config

from runner.errors import ConfigError
from runner.graph.input_pipeline import TrainingInput, not_resumed_exactly, without_autotuning
from runner.hooks import InputStateHook
from runner.session.cached_session import CachedSession
from runner.session.short_step import BLOCK, ROUNDS, SAMPLES
from tests.samples.counter import Counter

pytestmark = pytest.mark.usefixtures("graph")


@pytest.fixture(params=["pool", "caller's thread"])
def way(request: pytest.FixtureRequest) -> None:
    """Where cached sessions run their steps."""
    if request.param != "pool":
        request.getfixturevalue("in_callers_thread")


class _Take(tf.train.SessionRunHook):
    """Takes a batch at each step, and saves at the end."""

    def __init__(self, batch: tf.Tensor, saver: tf.train.Saver, prefix: str) -> None:
        self._batch, self._saver, self._prefix = batch, saver, prefix
        self.batches: list[Any] = []

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs(self._batch)

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        self.batches.append(run_values.results.tolist())

    def end(self, session: tf.Session) -> None:
        self._saver.save(session, self._prefix, write_meta_graph=False)
        self.after = self.three(session)

    def three(self, session: tf.Session) -> list[Any]:
        return [session.run(self._batch).tolist() for _ in range(3)]


class _Case:
    """Takes three batches, saves, takes three more, and three again after a restore."""

    def __init__(self, dataset: tf.data.Dataset, folder: Path) -> None:
        self.lines: list[str] = []
        source = TrainingInput(dataset, prefetch=True)
        saver = tf.train.Saver({"input": source.saveable})
        take = _Take(source.next()[0], saver, str(folder / "input"))
        counter = Counter()
        scaffold = tf.train.Scaffold(
            init_op=tf.group(tf.global_variables_initializer(), source.initializer),
            saver=counter.saver,
        )
        hooks = [take, InputStateHook(source.state, self.lines.append)]
        with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold), hooks) as session:
            for _ in range(3):
                session.run(counter.train_op)
        self.first, self.after = take.batches, take.after
        with CachedSession() as session:
            saver.restore(session, str(folder / "input"))
            self.restored = take.three(session)


@pytest.mark.usefixtures("way")
def test_the_position_is_saved_with_what_is_prefetched(tmp_path: Path) -> None:
    numbers = tf.data.Dataset.range(50).shuffle(10, seed=3).repeat().batch(2)
    case = _Case(numbers, tmp_path)
    assert case.lines == []
    assert case.restored == case.after != case.first


@pytest.mark.usefixtures("way")
def test_an_input_that_cannot_be_saved_is_an_error(tmp_path: Path) -> None:
    numbers = tf.TensorSpec([], tf.int64)
    data = tf.data.Dataset.from_generator(lambda: iter(range(100)), output_signature=numbers)
    with pytest.raises(ConfigError, match="position in the training data") as raised:
        _Case(data, tmp_path)
    (problem,) = raised.value.problems
    assert problem.cause == "GeneratorDataset does not support checkpointing."
    assert problem.remedy.startswith("train.save_input=false ")


def test_state_outside_of_the_position_is_reported(tmp_path: Path) -> None:
    random = tf.data.Dataset.counter().map(lambda index: tf.random.uniform([]))
    (line,) = _Case(random, tmp_path).lines
    assert line.startswith("input: a resumed run continues at the same place of the data, but sees")
    assert ": RandomUniform is stateful. To see the same, draw by tf.random.stateless_" in line


def test_batches_are_prefetched_unless_the_data_forbids_it() -> None:
    for prefetch in (False, True):
        with tf.Graph().as_default() as graph:
            TrainingInput(tf.data.Dataset.range(3), prefetch=prefetch)
        kinds = {op.type for op in graph.get_operations()}
        assert ("PrefetchDataset" in kinds) is prefetch


@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
@pytest.mark.parametrize(("own", "expected"), [(None, False), (False, False), (True, True)])
def test_a_dataset_is_tuned_only_where_its_options_ask_for_it(
    own: bool | None, expected: bool
) -> None:
    options = tf.data.Options()
    if own is not None:
        options.autotune.enabled = own
    options.deterministic = True
    given = without_autotuning(tf.data.Dataset.range(3).with_options(options)).options()
    assert given.autotune.enabled is expected
    assert given.deterministic


def _waited(wait: Callable[[], object]) -> float:
    def fetch(index: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(lambda each: (wait(), each)[1], [index], tf.int64)

    with tf.Graph().as_default(), CachedSession() as session:
        source = TrainingInput(tf.data.Dataset.range(3).map(fetch), prefetch=False)
        _, waited = source.next()
        session.run(source.initializer)
        return float(session.run(waited))


@pytest.mark.usefixtures("way")
def test_the_wait_for_a_batch_is_measured() -> None:
    never = threading.Event()
    assert 0.2 <= _waited(lambda: never.wait(0.2)) < 60.0
    assert 0.0 <= _waited(lambda: None) < 60.0


def _failing(number: Any) -> Any:
    if number == 2:
        raise ValueError("no such file: 2.png")
    return number


def _outcomes(*, prefetch: bool) -> list[str]:
    """Returns the numbers of six steps, or the errors."""
    with tf.Graph().as_default(), CachedSession() as session:
        data = tf.data.Dataset.range(5).map(
            lambda number: tf.numpy_function(_failing, [number], tf.int64)
        )
        source = TrainingInput(data, prefetch=prefetch)
        batch, _ = source.next()
        doubled = batch * 2
        session.run(source.initializer)
        outcomes = []
        for _ in range(6):
            try:
                outcomes.append(str(session.run(doubled)))
            except tf.errors.OpError as error:
                outcomes.append(f"{type(error).__name__}: {error.message}")
    return outcomes


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("prefetch", [False, True])
def test_errors_of_the_data_come_at_their_step(prefetch: bool) -> None:
    outcomes = _outcomes(prefetch=prefetch)
    assert [outcomes[step] for step in (0, 1, 3, 4)] == ["0", "2", "6", "8"]
    failed, ended = outcomes[2], outcomes[5]
    assert failed.startswith("InvalidArgumentError: ")
    assert "ValueError: no such file: 2.png" in failed
    assert ended.startswith("OutOfRangeError: ")
    assert "End of sequence" in ended
    # Messages end with the same operation, whichever thread waits.
    assert all(re.search(r"IteratorGetNext\W+$", text) for text in (failed, ended))


def test_one_session_may_take_batches_in_both_ways() -> None:
    """No batch is skipped or given twice when a step changes its thread, or is traced."""
    numbers = tf.data.Dataset.range(10_000).prefetch(3)
    source = TrainingInput(numbers, prefetch=True)
    batch, waited = source.next()
    with tf.control_dependencies([batch]):
        after = tf.constant(1.0)
    traced = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    taken = []
    with CachedSession() as session:
        session.run(source.initializer)
        for _ in range(2 * (SAMPLES + 2 * ROUNDS * BLOCK)):
            taken.append(session.run([batch, after])[0])
            taken.append(session.run([batch, waited])[0])
        taken.append(session.run(batch, options=traced))
    assert taken == list(range(len(taken)))


def _in_functions() -> Any:
    drawn = tf.function(lambda: tf.random_normal([]))
    return tf.function(lambda: tf.cond(tf.random_uniform([]) > 0.5, drawn, drawn))()


def _stateless() -> Any:
    step = tf.train.get_or_create_global_step()
    return tf.random.stateless_uniform([], seed=tf.stack([step, 7]))


@pytest.mark.parametrize(
    ("draw", "parts"),
    [
        (
            lambda: tf.random_uniform([], name="draw"),
            ["random numbers: draw/RandomUniform (RandomUniform) keeps its state in"],
        ),
        (_in_functions, ["random numbers: ", "RandomStandardNormal", "(RandomUniform)"]),
        (
            lambda: tf.ensure_shape(tf.numpy_function(lambda: np.float32(1), [], tf.float32), []),
            ["Python in the step: what "],
        ),
        (lambda: tf.add_n([tf.random_uniform([]) for _ in range(5)]), [" and 2 more keeps"]),
        (_stateless, []),
    ],
    ids=["random", "function", "python", "many", "stateless"],
)
def test_state_that_no_checkpoint_holds_is_reported(
    draw: Callable[[], Any], parts: list[str]
) -> None:
    variable = tf.get_variable("v", initializer=tf.random_normal([]), use_resource=True)
    lines = not_resumed_exactly(variable.assign_add(draw()).op)
    assert len(lines) == bool(parts)
    assert all(part in lines[0] for part in parts)


def test_batches_are_taken_where_everything_must_be_deterministic() -> None:
    framework_config.enable_op_determinism()
    try:
        source = TrainingInput(tf.data.Dataset.range(3), prefetch=True)
        batch, seconds = source.next()
        with tf.Session() as session:
            session.run(source.initializer)
            assert session.run((batch, seconds)) == (0, 0.0)
    finally:
        framework_config.disable_op_determinism()  # Nothing public does.
