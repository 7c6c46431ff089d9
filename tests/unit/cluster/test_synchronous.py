"""Two workers that update together do what one process does with batches twice as large."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.cluster.server import session_config
from runner.cluster_config import ClusterConfig
from runner.config import ClipConfig, TrainConfig
from runner.experiment import BuiltGraph, Training
from runner.graph import build_graph
from tests.tiny.configs import tiny
from tests.unit.cluster.conftest import InProcess

STEPS = 50


def build(batch_size: int, clip: ClipConfig, cluster: ClusterConfig | None = None) -> BuiltGraph:
    return build_graph(
        tiny(
            data={"_target_": "tests.tiny.experiment.Blobs", "batch_size": batch_size, "seed": 0},
            model={"_target_": "tests.tiny.odd.Plain"},
            train=TrainConfig(steps=STEPS, clip=clip),
            cluster=cluster or ClusterConfig(),
        ),
        "validation",
        train=True,
    )


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
    assert training.synchronous is not None
    with built.graph.as_default():
        hook = training.synchronous.hook(restarted)
        hook.begin()
        local = tf.compat.v1.local_variables_initializer()
    config = session_config(servers.task(kind))
    coordinator = tf.train.Coordinator()
    with tf.compat.v1.Session(servers.target(kind), built.graph, config) as session:
        if restarted is not None:
            session.run([each.initializer for each in built.variables.values()])
        session.run([local, training.input_initializer])
        hook.after_create_session(session, coordinator)
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
    built = {kind: build(8, clip, servers.task(kind)) for kind in ("chief", "worker")}
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


def test_a_worker_that_never_comes_ends_a_step_with_an_error(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(2, 1, synchronous=True)
    servers.cluster.max_wait_secs = 1.0
    built = build(8, ClipConfig(), servers.task("chief"))
    with (
        prepared(servers, "chief", built, lambda: False) as (session, coordinator),
        pytest.raises(tf.errors.DeadlineExceededError),
    ):
        session.run(training_of(built).train_op)
    assert coordinator.should_stop()


def test_an_update_does_not_wait_for_a_backup(in_process: Callable[..., InProcess]) -> None:
    servers = in_process(2, 1, synchronous=True, backup=1)
    built = build(8, ClipConfig(), servers.task("chief"))
    with prepared(servers, "chief", built, lambda: False) as (session, _):
        # Tokens that the other worker leaves let this one be ahead, and give some in vain.
        steps = [session.run(training_of(built).step) for _ in range(20)]
    assert steps[-1] >= 3


def test_a_chief_that_comes_back_wakes_who_lost_a_token(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(2, 1, synchronous=True)
    built = build(8, ClipConfig(), servers.task("chief"))
    with prepared(servers, "chief", built, lambda: True) as (session, _):
        # Two tokens at once: this worker alone may hand in a gradient for each.
        for _ in range(2):
            session.run(training_of(built).train_op)
        assert session.run(training_of(built).step) >= 1


def test_uninitialised_variables_are_an_error(in_process: Callable[..., InProcess]) -> None:
    servers = in_process(2, 1, synchronous=True)
    built = build(8, ClipConfig(), servers.task("worker"))
    with (
        pytest.raises(tf.errors.AbortedError, match="not initialised"),
        prepared(servers, "worker", built, None),
    ):
        pass
