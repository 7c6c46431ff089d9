"""Two workers that update together do what one process does with batches twice as large."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.cluster.replica import ClusterReplica
from runner.cluster.sessions import session_config
from runner.cluster.synchronous import SynchronousUpdate, Tokens
from runner.config.schema import ClipConfig, TrainConfig
from runner.graph.build import build_graph
from runner.graph.built_graph import BuiltGraph
from runner.graph.replica import Replica
from tests.tiny.configs import tiny
from tests.tiny.runs import wait_for
from tests.unit.cluster.conftest import InProcess

v1 = tf.compat.v1
STEPS = 6


class Copy:
    """One worker's graph: two variables on the servers with constant gradients, one of them sparse.

    Attributes:
      step: takes a step, and is the global step after it.
      handed_in: how many gradients the update to come has of each variable.
    """

    def __init__(self, servers: InProcess, kind: str) -> None:
        self.servers, self.kind = servers, kind
        cluster = servers.config(kind)
        with tf.Graph().as_default() as self.graph, ClusterReplica(cluster).scope():
            step = v1.train.get_or_create_global_step()
            self.dense = v1.get_variable("dense", [2], initializer=tf.zeros_initializer())
            self.table = v1.get_variable("table", [3, 1], initializer=tf.zeros_initializer())
            gradient = tf.gradients(tf.gather(self.table, [2, 0, 2]), self.table)[0]
            gradients = [(tf.ones([2]), self.dense), (gradient, self.table)]
            optimizer = v1.train.GradientDescentOptimizer(1.0)
            self.update = SynchronousUpdate(
                optimizer, gradients, lambda averages: averages, global_step=step, cluster=cluster
            )
            with tf.control_dependencies([self.update.train_op]):
                self.step = step.read_value()
            self.initialise = v1.global_variables_initializer()
            self.local = v1.local_variables_initializer()
            self.handed_in = [
                tf.raw_ops.ResourceAccumulatorNumAccumulated(handle=operation.outputs[0])
                for operation in self.graph.get_operations()
                if operation.type == "ResourceConditionalAccumulator"
            ]

    @contextmanager
    def session(
        self, restarted: Callable[[], bool] | None = None
    ) -> Iterator[tuple[Any, tf.train.Coordinator]]:
        """A session, after its hook has run; the first of a chief initialises the variables."""
        hook = self.update.hook(restarted)
        coordinator = tf.train.Coordinator()
        config = session_config(self.servers.config(self.kind))
        with v1.Session(self.servers.target(self.kind), self.graph, config) as session:
            if restarted is not None:
                session.run(self.initialise)
            session.run(self.local)
            hook.after_create_session(session, coordinator)
            hook.before_run(None)
            yield session, coordinator
            coordinator.request_stop()


def first() -> bool:
    """Whether the servers have seen an earlier session of the chief's."""
    return False


@pytest.fixture
def servers(in_process: Callable[..., InProcess]) -> InProcess:
    return in_process(2, 1, synchronous=True)


@contextmanager
def waiting(session: Any, copy: Copy, watching: Any, watched: Copy) -> Iterator[None]:
    """A worker waits in a step, its gradients handed in; the step ends before the block does.

    That is seen from another session, the chief's.
    """

    def step() -> None:
        with suppress(tf.errors.CancelledError):
            session.run(copy.update.train_op)

    thread = threading.Thread(target=step)
    thread.start()
    wait_for(lambda: min(watching.run(watched.handed_in)) > 0)
    yield
    thread.join(60)
    assert not thread.is_alive()


def test_two_workers_match_one_process_with_the_doubled_batch(
    in_process: Callable[..., InProcess],
) -> None:
    servers, initialised = in_process(2, 2, synchronous=True), threading.Event()

    def build(batch_size: int, replica: Replica) -> BuiltGraph:
        config = tiny(
            data={"_target_": "tests.tiny.experiment.Blobs", "batch_size": batch_size, "seed": 0},
            model={"_target_": "tests.tiny.odd.PlainModel"},
            metrics={},
            # Always reached: the averages are clipped, and not the gradients of each worker.
            train=TrainConfig(steps=STEPS, clip=ClipConfig(global_norm=0.05)),
        )
        return build_graph(config, "validation", train=True, replica=replica)

    def trained(session: Any, built: BuiltGraph, hook: Any, *, leads: bool) -> dict[str, Any]:
        training, coordinator = built.training, tf.train.Coordinator()
        assert training is not None
        if leads:
            session.run([variable.initializer for variable in built.variables.values()])
            initialised.set()
        initialised.wait(60)
        with built.graph.as_default():
            session.run([v1.local_variables_initializer(), training.input_initializer])
        if hook is not None:
            hook.after_create_session(session, coordinator)
            hook.before_run(None)
        for _ in range(STEPS):
            session.run(training.train_op)
        coordinator.request_stop()
        return dict(session.run(dict(built.variables)))

    sessions, copies = [], []
    for kind in ("chief", "worker"):
        replica = ClusterReplica(servers.config(kind))
        built = build(8, replica)
        assert replica.update is not None
        settings = session_config(servers.config(kind))
        sessions.append(v1.Session(servers.target(kind), built.graph, settings))
        copies.append((built, replica.update.hook(first if kind == "chief" else None)))
    with sessions[0] as chief, sessions[1] as other:
        worker = threading.Thread(target=trained, args=(other, *copies[1]), kwargs={"leads": False})
        worker.start()
        found = trained(chief, *copies[0], leads=True)
        worker.join()
    alone = build(16, Replica())
    with v1.Session(graph=alone.graph) as session:
        expected = trained(session, alone, None, leads=True)
    assert (found.keys(), found["global_step"]) == (expected.keys(), STEPS)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


def test_a_worker_that_never_comes_ends_a_step_with_an_error(servers: InProcess) -> None:
    servers.cluster.max_wait_secs = 3.0  # Also for what prepares the session.
    copy = Copy(servers, "chief")
    with (
        copy.session(first) as (session, coordinator),
        pytest.raises(tf.errors.DeadlineExceededError),
    ):
        session.run(copy.step)
    assert coordinator.should_stop()


def test_an_update_does_not_wait_for_a_backup(in_process: Callable[..., InProcess]) -> None:
    copy = Copy(in_process(2, 1, synchronous=True, backup=1), "chief")
    with copy.session(first) as (session, _):
        assert [session.run(copy.step) for _ in range(3)] == [1, 2, 3]
        assert session.run(copy.dense).tolist() == [-3, -3]
        assert session.run(copy.table).tolist() == [[-3], [0], [-6]]


def test_a_worker_that_was_killed_leaves_its_token_and_comes_back_in_step(
    servers: InProcess,
) -> None:
    chief, worker = Copy(servers, "chief"), Copy(servers, "worker")
    steps: dict[str, list[int]] = {"chief": [], "worker": []}

    def take(copy: Copy, session: Any) -> None:
        for _ in range(5):
            steps[copy.kind].append(int(session.run(copy.step)))

    with chief.session(first) as (session, _):
        with worker.session() as (lost, _), waiting(lost, worker, session, chief):
            lost.close()
        assert session.run(chief.step) == 1
        # The chief does not take the token of the worker, and so makes no update alone.
        thread = threading.Thread(target=take, args=(chief, session))
        thread.start()
        wait_for(lambda: min(session.run(chief.handed_in)) > 0)
        with worker.session() as (back, _):
            take(worker, back)
        thread.join()
    assert steps == {"chief": [2, 3, 4, 5, 6], "worker": [2, 3, 4, 5, 6]}


def test_a_chief_that_comes_back_wakes_workers_whose_token_was_lost(servers: InProcess) -> None:
    chief, worker = Copy(servers, "chief"), Copy(servers, "worker")
    with (
        chief.session(first) as (session, coordinator),
        worker.session() as (other, _),
        waiting(other, worker, session, chief),
    ):
        coordinator.request_stop()
        session.close()
        with chief.session(lambda: True):
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


def test_an_update_that_fails_ends_the_step_but_not_the_making_of_the_session(
    servers: InProcess,
) -> None:
    update = Copy(servers, "chief").update
    for lost, raised in (
        (tf.errors.UnavailableError, tf.errors.UnavailableError),
        (tf.errors.CancelledError, tf.errors.AbortedError),
        (tf.errors.FailedPreconditionError, tf.errors.AbortedError),
        (tf.errors.InvalidArgumentError, tf.errors.InvalidArgumentError),
    ):
        hook, coordinator = update.hook(first), tf.train.Coordinator()
        session: Any = Losing(update.update_op, lost(None, None, "the update failed"))
        hook.after_create_session(session, coordinator)
        assert not session.closed.wait(0.1)
        hook.before_run(None)
        assert session.closed.wait(20)
        with pytest.raises(raised, match="the update failed"):
            coordinator.raise_requested_exception()


def test_a_server_that_an_update_does_not_wait_for_is_missed(servers: InProcess) -> None:
    copy = Copy(servers, "chief")
    with copy.graph.as_default():
        lose = tf.raw_ops.DestroyResourceOp(resource=copy.table.handle)
    with copy.session(first) as (session, coordinator):
        with waiting(session, copy, session, copy):
            session.run(lose)  # As where its server was killed and started again.
        with pytest.raises(tf.errors.AbortedError, match="not initialised"):
            coordinator.raise_requested_exception()


def test_uninitialised_variables_are_an_error(servers: InProcess) -> None:
    with (
        pytest.raises(tf.errors.AbortedError, match="not initialised"),
        Copy(servers, "worker").session(),
    ):
        pass


def test_the_newest_token_counts_and_dropped_ones_are_gone(
    in_process: Callable[..., InProcess],
) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:0"):
            step = v1.train.get_or_create_global_step()
        given = v1.placeholder(tf.int64, [])
        chief, worker = Tokens(step, 2, 0), Tokens(step, 2, 1)
        take, take_of_worker = chief.take(), worker.take()
        hand_out = chief.hand_out(given)
    with v1.Session(in_process(2, 1).target("chief"), graph) as session:
        session.run(step.initializer)
        # A chief that comes back may begin at an earlier step.
        for token in (8, 3):
            session.run(hand_out, {given: token})
        assert session.run(take_of_worker) == 3
        for _ in range(2):  # There may be none to drop.
            session.run(chief.drop_op)
        session.run(chief.wake_others_op)
        assert session.run(take_of_worker) == 0
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(take, options=v1.RunOptions(timeout_in_ms=500))
