"""Coordinators and queue runners keep their promises through our sessions."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import runner

BOTH = pytest.mark.parametrize("api", [tf.train, runner], ids=["tensorflow", "runner"])
EXAMPLES = 64


class Pipeline:
    """Numbers read by queue runners, shuffled and batched; a step fits a line to them."""

    def __init__(self, epochs: int | None) -> None:
        number = tf.train.range_input_producer(EXAMPLES, epochs, seed=1).dequeue()
        example = tf.cast(number, tf.float32) / EXAMPLES
        queue = tf.RandomShuffleQueue(EXAMPLES, 8, [tf.float32, tf.float32], [[], []], seed=1)
        enqueue = queue.enqueue([example, 3.0 * example + 1.0])
        self.runner = tf.train.QueueRunner(queue, [enqueue] * 2)
        tf.train.add_queue_runner(self.runner)
        self.x, self.y = queue.dequeue_many(8)
        self.slope = tf.get_variable("slope", initializer=0.0)
        self.offset = tf.get_variable("offset", initializer=0.0)
        self.loss = tf.reduce_mean((self.slope * self.x + self.offset - self.y) ** 2)
        self.step = tf.train.get_or_create_global_step()
        optimizer = tf.train.GradientDescentOptimizer(0.5)
        self.train_op = optimizer.minimize(self.loss, self.step)


class Captured(tf.train.SessionRunHook):
    """Remembers the coordinator, and threads that it starts under it."""

    def __init__(self, *targets: Any) -> None:
        self.targets = targets
        self.threads: list[threading.Thread] = []

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self.coord = coord
        for index, target in enumerate(self.targets):
            thread = threading.Thread(target=target, args=(coord,), name=f"laggard {index}")
            thread.daemon = True
            coord.register_thread(thread)
            self.threads.append(thread)
            thread.start()


@BOTH
def test_an_input_pipeline_trains_to_its_end(api: Any) -> None:
    before = threading.active_count()
    with tf.Graph().as_default():
        pipeline = Pipeline(epochs=20)
        seen: list[np.ndarray[Any, Any]] = []
        steps = 0
        with api.MonitoredTrainingSession() as session:
            assert threading.active_count() > before
            while not session.should_stop():
                x, loss, _ = session.run([pipeline.x, pipeline.loss, pipeline.train_op])
                seen.append(x)
                steps += 1
        # The end of input came out of the run and ended the session without an error.
        assert steps == 20 * EXAMPLES // 8
        counts = np.unique(np.concatenate(seen), return_counts=True)[1]
        assert counts.tolist() == [20] * EXAMPLES
        assert loss < 0.05
    assert threading.active_count() == before


@BOTH
def test_queue_runners_are_closed_with_the_session(api: Any) -> None:
    before = threading.active_count()
    with tf.Graph().as_default():
        pipeline = Pipeline(epochs=None)
        hook = Captured()
        with api.MonitoredSession(hooks=[hook, tf.train.StopAtStepHook(5)]) as session:
            while not session.should_stop():
                session.run(pipeline.train_op)
        assert hook.coord.should_stop()
        assert hook.coord.joined
    assert threading.active_count() == before


@BOTH
def test_the_first_error_of_a_thread_is_raised(api: Any) -> None:
    failed = threading.Event()

    def fail(coord: tf.train.Coordinator) -> None:
        with coord.stop_on_exception():
            raise ZeroDivisionError("in a thread")

    def fail_later(coord: tf.train.Coordinator) -> None:
        coord.wait_for_stop()
        with coord.stop_on_exception():
            failed.set()
            raise KeyError("too late")

    with tf.Graph().as_default():
        step = tf.assign_add(tf.train.get_or_create_global_step(), 1)
        hook = Captured(fail, fail_later)

        def train() -> None:
            with api.MonitoredSession(hooks=[hook]) as session:
                assert failed.wait(20)
                assert session.should_stop()
                session.run(step)

        with pytest.raises(ZeroDivisionError, match="in a thread"):
            train()


@BOTH
def test_an_error_of_a_queue_runner_is_raised(api: Any) -> None:
    with tf.Graph().as_default():
        value = tf.get_variable("value", initializer=float("nan"))
        queue = tf.FIFOQueue(4, [tf.float32], [[]])
        enqueue = queue.enqueue([tf.debugging.check_numerics(value, "queue got")])
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, [enqueue]))
        item = queue.dequeue()
        with (
            pytest.raises(tf.errors.InvalidArgumentError, match="queue got"),
            api.MonitoredSession() as session,
        ):
            session.run(item)


@BOTH
def test_laggards_are_left_behind_after_the_grace_period(
    api: Any, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    def lag(coord: tf.train.Coordinator) -> None:
        release.wait(60)

    with tf.Graph().as_default():
        step = tf.assign_add(tf.train.get_or_create_global_step(), 1)
        hook = Captured(lag)
        logger = tf.get_logger()  # It does not hand on what it logs.
        logger.addHandler(caplog.handler)
        caplog.set_level("INFO", logger.name)
        try:
            with api.MonitoredTrainingSession(hooks=[hook], stop_grace_period_secs=0.1) as session:
                session.run(step)
        finally:
            logger.removeHandler(caplog.handler)
        assert hook.threads[0].is_alive()
        assert "threads still running: laggard 0" in caplog.text
        with pytest.raises(RuntimeError, match="laggard 0"):
            hook.coord.join(hook.threads, stop_grace_period_secs=0.1)
    release.set()
    hook.threads[0].join(20)
    assert not hook.threads[0].is_alive()


@BOTH
def test_a_supervisor_names_laggards(api: Any) -> None:
    release = threading.Event()
    with tf.Graph().as_default():
        supervisor = api.Supervisor(stop_grace_secs=0.1)
        thread = threading.Thread(target=lambda: release.wait(60), name="laggard", daemon=True)

        def train() -> None:
            with supervisor.managed_session():
                supervisor.coord.register_thread(thread)
                thread.start()

        with pytest.raises(RuntimeError, match="laggard"):
            train()
    release.set()
    thread.join(20)


def test_exceptions_for_a_clean_stop_are_not_raised() -> None:
    coord = tf.train.Coordinator(clean_stop_exception_types=(tf.errors.OutOfRangeError, KeyError))
    with tf.Graph().as_default():
        pipeline = Pipeline(epochs=1)
        with runner.CachedSession() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            threads = tf.train.start_queue_runners(session, coord)
            with coord.stop_on_exception():
                while not coord.should_stop():
                    session.run(pipeline.train_op)
            assert coord.should_stop()
            coord.join(threads, stop_grace_period_secs=20)
            assert session.run(pipeline.step) == EXAMPLES // 8
    coord.clear_stop()

    def fail() -> Any:
        raise ValueError("not clean")

    with coord.stop_on_exception():
        fail()
    with pytest.raises(ValueError, match="not clean"):
        coord.join()


@BOTH
def test_queue_runners_start_again_in_a_recovered_session(api: Any) -> None:
    with tf.Graph().as_default():
        pipeline = Pipeline(epochs=None)
        failures = [tf.errors.AbortedError(None, None, "gone")]

        class Fails(tf.train.SessionRunHook):
            def after_run(self, run_context: Any, run_values: Any) -> None:
                if failures:
                    raise failures.pop()

        with api.MonitoredSession(hooks=[Fails(), tf.train.StopAtStepHook(5)]) as session:
            while not session.should_stop():
                session.run(pipeline.train_op)
        assert failures == []
