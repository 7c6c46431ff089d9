"""Sessions are made when the tasks they need are there."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from runner.cluster.channel import Channel
from runner.cluster.session_creators import ClusterChiefSessionCreator, ClusterWorkerSessionCreator
from runner.cluster.worker import missing_of_model
from runner.errors import ClusterError, InterruptedRunError, Problem
from runner.system.signals import Interruption
from tests.unit.cluster.conftest import InProcess

v1 = tf.compat.v1


def model() -> None:
    with tf.device("/job:ps/task:0"):
        v1.train.get_or_create_global_step()


def worker_session(
    servers: InProcess, limit: float, agree: Callable[[], None] = lambda: None
) -> Any:
    cluster = servers.task("worker")
    cluster.max_wait_secs = limit
    with tf.Graph().as_default():
        model()
        scaffold = v1.train.Scaffold(ready_for_local_init_op=missing_of_model(1))
        return ClusterWorkerSessionCreator(
            cluster, servers.target("worker"), scaffold, agree=agree
        ).create_session()


def test_a_worker_waits_until_the_chief_has_restored(in_process: Callable[..., InProcess]) -> None:
    servers = in_process(2, 1)
    address = servers.cluster.addresses.chief[0]
    with pytest.raises(ClusterError) as error:
        worker_session(servers, 0.3)
    (problem,) = error.value.problems
    assert problem.state == "the model was not ready within 0.3 s"
    assert problem.cause == (f"it is the chief at {address} that initialises it, and that answers")

    # Its variables are initialised, and nothing is restored yet.
    with tf.Graph().as_default():
        model()
        initialise = v1.global_variables_initializer()
        with v1.Session(servers.target("chief")) as session:
            session.run(initialise)
    with pytest.raises(ClusterError, match="the model was not ready"):
        worker_session(servers, 0.3)

    with tf.Graph().as_default():
        model()
        told: list[str] = []
        channel = Channel(["worker0"])
        creator = ClusterChiefSessionCreator(
            servers.cluster, servers.target("chief"), agree=lambda: told.append("chief")
        )
        for _ in range(2):
            with creator.create_session() as session:
                channel.end(session, "worker0")
            assert creator.restarted
        # The chief, started again, waits for no worker that has ended, unless it comes back.
        with creator.create_session() as session:
            assert channel.running(session) == []
            worker_session(servers, 5.0, lambda: told.append("worker")).close()
            assert channel.running(session) == ["worker0"]
    assert told == ["chief", "chief", "chief", "worker", "worker"]

    def refuse() -> None:
        raise ClusterError(Problem("other settings"))

    with pytest.raises(ClusterError, match="other settings"):
        worker_session(servers, 5.0, refuse)


def test_the_first_session_of_fresh_servers_is_no_restart(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(1, 1)
    with tf.Graph().as_default():
        model()
        channel = Channel([])
        creator = ClusterChiefSessionCreator(servers.cluster, servers.target("chief"), run="001")
        with creator.create_session() as session:
            assert channel.run(session) == "001"
            for step in (0, 1):
                channel.send(session, "worker0", {"loss": 0.5}, step)
        assert not creator.restarted
        with creator.create_session() as session:
            # What was sent of a step that is undone is undone with it.
            assert channel.receive(session) == [("worker0", 0, {"loss": 0.5})]
        assert creator.restarted


def test_a_worker_says_for_whom_it_waits_and_heeds_a_signal(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(2, 1)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        signal.raise_signal(signal.SIGTERM)

    with tf.Graph().as_default():
        model()
        ready = v1.report_uninitialized_variables(v1.global_variables())
        scaffold = v1.train.Scaffold(ready_for_local_init_op=ready)
        with Interruption().handled() as interruption, interruption.deferred():
            creator = ClusterWorkerSessionCreator(
                servers.task("worker"),
                servers.target("worker"),
                scaffold,
                interruption.prompt,
                say=say,
            )
            with pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
                creator.create_session()
    address = servers.cluster.addresses.chief[0]
    assert said == [f"waits for the chief at {address} to make the model ready, 20 s at most"]
