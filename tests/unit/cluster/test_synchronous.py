"""Two workers that update together do what one process does with batches twice as large."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.cluster.replica import ClusterReplica
from runner.cluster.sessions import session_config
from runner.cluster.synchronous import SynchronousUpdate, Tokens
from runner.config.schema import ClipConfig, ClusterConfig, TrainConfig
from runner.graph.build import build_graph
from runner.graph.experiment import BuiltGraph, Training
from tests.tiny.configs import tiny
from tests.unit.cluster.conftest import InProcess

STEPS = 50


# Of each graph, the update that it shares with other workers.
_updates: dict[tf.Graph, SynchronousUpdate | None] = {}


def build(batch_size: int, clip: ClipConfig, cluster: ClusterConfig | None = None) -> BuiltGraph:
    config = tiny(
        data={"_target_": "tests.tiny.experiment.Blobs", "batch_size": batch_size, "seed": 0},
        model={"_target_": "tests.tiny.odd.Plain"},
        train=TrainConfig(steps=STEPS, clip=clip),
    )
    if cluster is None:
        return build_graph(config, "validation", train=True)
    replica = ClusterReplica(cluster)
    built = build_graph(config, "validation", train=True, replica=replica)
    _updates[built.graph] = replica.update
    return built


def update_of(built: BuiltGraph) -> SynchronousUpdate:
    update = _updates[built.graph]
    assert update is not None
    return update


def training_of(built: BuiltGraph) -> Training:
    assert built.training is not None
    return built.training


def trained(session: Any, built: BuiltGraph) -> dict[str, Any]:
    return dict(session.run(dict(built.variables)))


def alone(clip: ClipConfig) -> dict[str, Any]:
    built = build(16, clip)
    training = training_of(built)
    with tf.compat.v1.Session(graph=built.graph) as session:
        session.run([each.initializer for each in built.variables.values()])
        session.run(training.input_initializer)
        for _ in range(STEPS):
            session.run(training.train_op)
        return trained(session, built)


@contextmanager
def prepared(
    servers: InProcess, kind: str, built: BuiltGraph, restarted: Callable[[], bool] | None
) -> Iterator[tuple[Any, tf.train.Coordinator]]:
    """A session of one task, after its hook has run."""
    training = training_of(built)
    hook = update_of(built).hook(restarted)
    with built.graph.as_default():
        local = tf.compat.v1.local_variables_initializer()
    config = session_config(servers.config(kind))
    coordinator = tf.train.Coordinator()
    with tf.compat.v1.Session(servers.target(kind), built.graph, config) as session:
        if restarted is not None:
            session.run([each.initializer for each in built.variables.values()])
        session.run([local, training.input_initializer])
        hook.after_create_session(session, coordinator)
        hook.before_run(None)
        yield session, coordinator
        coordinator.request_stop()


@pytest.mark.parametrize(
    "clip",
    [ClipConfig(), ClipConfig(global_norm=0.05)],
    ids=["as it is", "clipped after averaging"],
)
def test_two_workers_match_one_process_with_the_doubled_batch(
    in_process: Callable[..., InProcess], clip: ClipConfig
) -> None:
    servers = in_process(2, 2, synchronous=True)
    built = {kind: build(8, clip, servers.config(kind)) for kind in ("chief", "worker")}
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with prepared(servers, "worker", built["worker"], None) as (session, _):
                for _ in range(STEPS):
                    session.run(training_of(built["worker"]).train_op)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    with prepared(servers, "chief", built["chief"], lambda: False) as (session, _):
        worker = threading.Thread(target=work)
        worker.start()
        for _ in range(STEPS):
            session.run(training_of(built["chief"]).train_op)
        worker.join()
        found = trained(session, built["chief"])
    assert failures == []
    expected = alone(clip)
    assert found.keys() == expected.keys()
    assert found["global_step"] == STEPS
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


def test_only_the_rows_of_a_batch_are_updated(in_process: Callable[..., InProcess]) -> None:
    servers = in_process(1, 1, synchronous=True)
    cluster = servers.config("chief")
    with tf.Graph().as_default() as graph, ClusterReplica(cluster).scope():
        step = tf.compat.v1.train.get_or_create_global_step()
        table = tf.compat.v1.get_variable("table", [3, 2], initializer=tf.zeros_initializer())
        gradient = tf.gradients(tf.reduce_sum(tf.gather(table, [2, 0, 2])), table)[0]
        assert isinstance(gradient, tf.IndexedSlices)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        update = SynchronousUpdate(
            optimizer, [(gradient, table)], lambda given: given, step, cluster
        )
        started = tf.compat.v1.global_variables_initializer()
        local = tf.compat.v1.local_variables_initializer()
    with tf.compat.v1.Session(servers.target("chief"), graph, session_config(cluster)) as session:
        session.run(started)
        session.run(local)
        session.run(update.chief_start_op)
        thread = threading.Thread(target=session.run, args=(update.update_op,))
        thread.start()
        session.run(update.train_op)
        thread.join()
        assert session.run(table).tolist() == [[-1, -1], [0, 0], [-2, -2]]


def test_a_worker_that_never_comes_ends_a_step_with_an_error(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(2, 1, synchronous=True)
    servers.cluster.max_wait_secs = 1.0
    built = build(8, ClipConfig(), servers.config("chief"))
    with (
        prepared(servers, "chief", built, lambda: False) as (session, coordinator),
        pytest.raises(tf.errors.DeadlineExceededError),
    ):
        session.run(training_of(built).train_op)
    assert coordinator.should_stop()


def test_an_update_does_not_wait_for_a_backup(in_process: Callable[..., InProcess]) -> None:
    servers = in_process(2, 1, synchronous=True, backup=1)
    built = build(8, ClipConfig(), servers.config("chief"))
    with prepared(servers, "chief", built, lambda: False) as (session, _):
        assert [session.run(training_of(built).step) for _ in range(5)] == [1, 2, 3, 4, 5]


def both(servers: InProcess) -> dict[str, BuiltGraph]:
    return {kind: build(8, ClipConfig(), servers.config(kind)) for kind in ("chief", "worker")}


@contextmanager
def waiting(session: Any, built: BuiltGraph, watching: Any, watched: BuiltGraph) -> Iterator[None]:
    """A worker waits in a step, its gradients handed in; the step ends before the block does.

    Args:
      session: the worker's.
      built: its graph.
      watching: a session of the chief's.
      watched: the graph of that.
    """
    with watched.graph.as_default():
        counts = [
            tf.raw_ops.ResourceAccumulatorNumAccumulated(handle=each.outputs[0])
            for each in watched.graph.get_operations()
            if each.type == "ResourceConditionalAccumulator"
        ]

    def step() -> None:
        with suppress(tf.errors.CancelledError):
            session.run(training_of(built).train_op)

    thread = threading.Thread(target=step)
    thread.start()
    deadline = time.monotonic() + 60
    while min(watching.run(counts)) < 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield
    thread.join(60)
    assert not thread.is_alive()


def test_nobody_takes_the_token_of_a_worker_that_is_gone(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(2, 1, synchronous=True)
    built = both(servers)
    with prepared(servers, "chief", built["chief"], lambda: False) as (session, _):
        with (
            prepared(servers, "worker", built["worker"], None) as (lost, _),
            waiting(lost, built["worker"], session, built["chief"]),
        ):
            lost.close()
        assert session.run(training_of(built["chief"]).step) == 1
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(
                training_of(built["chief"]).train_op,
                options=tf.compat.v1.RunOptions(timeout_in_ms=1500),
            )


def test_a_worker_that_comes_back_is_in_step_with_the_others(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(2, 1, synchronous=True)
    built, again = both(servers), build(8, ClipConfig(), servers.config("worker"))
    steps: dict[str, list[int]] = {"chief": [], "worker": []}

    def take(kind: str, session: Any) -> None:
        for _ in range(5):
            steps[kind].append(int(session.run(training_of(built[kind]).step)))

    with prepared(servers, "chief", built["chief"], lambda: False) as (session, _):
        with (
            prepared(servers, "worker", built["worker"], None) as (lost, _),
            waiting(lost, built["worker"], session, built["chief"]),
        ):
            lost.close()
        assert session.run(training_of(built["chief"]).step) == 1
        built["worker"] = again
        with prepared(servers, "worker", again, None) as (back, _):
            worker = threading.Thread(target=take, args=("worker", back))
            worker.start()
            take("chief", session)
            worker.join()
    assert steps == {"chief": [2, 3, 4, 5, 6], "worker": [2, 3, 4, 5, 6]}


def test_a_chief_that_comes_back_wakes_who_lost_a_token(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(2, 1, synchronous=True)
    built, again = both(servers), build(8, ClipConfig(), servers.config("chief"))
    with (
        prepared(servers, "chief", built["chief"], lambda: False) as (session, coordinator),
        prepared(servers, "worker", built["worker"], None) as (worker, _),
        waiting(worker, built["worker"], session, built["chief"]),
    ):
        coordinator.request_stop()
        session.close()
        with prepared(servers, "chief", again, lambda: True):
            pass


class Losing:
    """A session that has lost the server which collects gradients."""

    def __init__(self, update: Any, error: Exception) -> None:
        self.update, self.error, self.closed = update, error, threading.Event()

    def run(self, fetched: Any) -> Any:
        if fetched is self.update:
            raise self.error
        return np.zeros(0)

    def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        (tf.errors.UnavailableError, tf.errors.UnavailableError),
        (tf.errors.CancelledError, tf.errors.AbortedError),
        (tf.errors.FailedPreconditionError, tf.errors.AbortedError),
        (tf.errors.InvalidArgumentError, tf.errors.InvalidArgumentError),
    ],
)
def test_an_update_that_fails_ends_the_step_but_not_the_making_of_the_session(
    in_process: Callable[..., InProcess],
    lost: type[tf.errors.OpError],
    told: type[tf.errors.OpError],
) -> None:
    servers = in_process(2, 1, synchronous=True)
    built = build(8, ClipConfig(), servers.config("chief"))
    hook = update_of(built).hook(lambda: False)
    session: Any = Losing(update_of(built).update_op, lost(None, None, "the update failed"))
    coordinator = tf.train.Coordinator()
    hook.after_create_session(session, coordinator)
    assert not session.closed.wait(0.2)
    hook.before_run(None)
    assert session.closed.wait(20)
    with pytest.raises(told, match="the update failed"):
        coordinator.raise_requested_exception()


def test_a_server_that_an_update_does_not_wait_for_is_missed(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(2, 1, synchronous=True)
    built = build(8, ClipConfig(), servers.config("chief"))
    with prepared(servers, "chief", built, lambda: False) as (session, coordinator):
        with built.graph.as_default():
            handle = built.variables["head/bias"].handle
            lose = tf.raw_ops.DestroyResourceOp(resource=handle)
        with waiting(session, built, session, built):
            session.run(lose)  # As where its server was killed and started again.
        with pytest.raises(tf.errors.AbortedError, match="not initialised"):
            coordinator.raise_requested_exception()


def test_uninitialised_variables_are_an_error(in_process: Callable[..., InProcess]) -> None:
    servers = in_process(2, 1, synchronous=True)
    built = build(8, ClipConfig(), servers.config("worker"))
    with (
        pytest.raises(tf.errors.AbortedError, match="not initialised"),
        prepared(servers, "worker", built, None),
    ):
        pass


@dataclass
class Worker:
    """What one worker can do; `tokens` is what is handed out."""

    session: Any
    tokens: Any
    take: Any
    hand_out: Any
    queues: Tokens

    def give(self, *tokens: int) -> None:
        for token in tokens:
            self.session.run(self.hand_out, {self.tokens: token})

    def has_none(self) -> bool:
        options = tf.compat.v1.RunOptions(timeout_in_ms=500)
        with pytest.raises(tf.errors.DeadlineExceededError):
            self.session.run(self.take, options=options)
        return True


@contextmanager
def worker(servers: InProcess, index: int) -> Iterator[Worker]:
    kind = ("chief", "worker")[index]
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:0"):
            step = tf.compat.v1.train.get_or_create_global_step()
        given = tf.compat.v1.placeholder(tf.int64, [])
        tokens = Tokens(step, 2, index)
        made = (given, tokens.take(), tokens.hand_out(given), tokens)
        with tf.compat.v1.Session(servers.target(kind), graph) as session:
            session.run(step.initializer)
            yield Worker(session, *made)


@pytest.fixture
def two(in_process: Callable[..., InProcess]) -> Iterator[tuple[Worker, Worker]]:
    servers = in_process(2, 1)
    with worker(servers, 0) as chief, worker(servers, 1) as other:
        yield chief, other


def test_a_worker_takes_no_token_of_another(two: tuple[Worker, Worker]) -> None:
    chief, other = two
    chief.give(7)
    assert chief.session.run(chief.take) == 7
    assert chief.has_none()
    assert other.session.run(other.take) == 7


def test_a_worker_that_is_late_takes_all_and_goes_on_from_the_newest(
    two: tuple[Worker, Worker],
) -> None:
    chief, other = two
    chief.give(7, 8, 3)  # A chief that comes back may begin at an earlier step.
    assert other.session.run(other.take) == 3
    assert other.has_none()


def test_what_is_left_over_is_dropped(two: tuple[Worker, Worker]) -> None:
    chief, other = two
    other.session.run(other.queues.drop_op)
    chief.give(7)
    other.session.run(other.queues.drop_op)
    assert other.has_none()


def test_the_others_are_woken(two: tuple[Worker, Worker]) -> None:
    chief, other = two
    chief.session.run(chief.queues.wake_others_op)
    assert other.session.run(other.take) == 0
    assert chief.has_none()
