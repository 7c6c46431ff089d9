"""Tasks know who answers, and read what others announce through the parameter servers."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import tensorflow as tf

from runner.cluster.channel import (
    Channel,
    FirstServer,
    State,
    left_flag,
    ready_flags,
    released_flag,
    require_agreement,
    shared_settings,
)
from runner.cluster.local import free_addresses
from runner.cluster.sessions import ClusterTask, session_config
from runner.config.cluster_spec import Addresses, Cluster, answers, in_use
from runner.config.schema import (
    ClusterConfig,
    ClusterMode,
    DevicesConfig,
    MaskConfig,
    SessionConfig,
    TrackingConfig,
    TrainConfig,
)
from runner.errors import ClusterError
from runner.system.signals import Interruption
from tests.support.configs import tiny
from tests.unit.cluster.conftest import InProcess, Lines


def test_only_an_address_with_a_listener_answers_and_the_others_are_named() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        listening = f"127.0.0.1:{server.getsockname()[1]}"
        assert in_use(listening)
        assert answers(listening)
        free, other = addresses = free_addresses(2)
        assert len({*addresses}) == 2
        assert not any(in_use(address) or answers(address) for address in [*addresses, "malformed"])

        lines = Lines()

        def wait(*addresses: str) -> None:
            config = Addresses([], [], [*addresses])
            cluster = Cluster(addresses=config, max_wait_secs=0.2, recovery_wait_secs=0.1)
            ClusterTask(tiny(cluster=cluster), lines.screen, Interruption()).wait_for_servers()

        wait(listening)
        assert lines() == []
        with pytest.raises(ClusterError, match=f"^ps 1 at {free} does not answer"):
            wait(listening, free)
        assert lines() == [f"waits for ps 1 at {free}, 0.2 s at most"]
        with pytest.raises(ClusterError, match=f"^ps 0 at {free}, ps 1 at {other} do not answer"):
            wait(free, other)


def test_metrics_and_announcements_reach_other_tasks(in_process: Callable[..., InProcess]) -> None:
    servers = in_process(2, 1, evaluator=True)
    channels, sessions = {}, {}
    for kind in ("chief", "worker"):
        config = servers.config(kind)
        with tf.Graph().as_default() as graph:
            channels[kind] = Channel(config)
        sessions[kind] = tf.compat.v1.Session(servers.target(kind), graph, session_config(config))
    of_chief, of_worker = channels["chief"], channels["worker"]
    with sessions["chief"] as chief, sessions["worker"] as worker:
        assert of_chief.receive(chief) == []
        for step, loss in ((3, 0.5), (4, float("nan"))):
            of_worker.send(worker, "worker0", {"loss": loss}, step=step)
        found = of_chief.receive(chief)
        assert found[0] == ("worker0", 3, {"loss": 0.5})
        assert [(step, str(metrics["loss"])) for _, step, metrics in found[1:]] == [(4, "nan")]
        assert of_chief.receive(chief) == []

        assert of_worker.run.text(worker) is None
        of_chief.run.set(chief, "002")
        assert of_worker.run.text(worker) == "002"

        assert of_chief.running(chief) == ["worker0", "evaluator"]
        of_worker.ended["worker0"].set(worker)
        assert of_chief.running(chief) == ["evaluator"]
        assert of_worker.state(worker) == State(False, False, False)
        of_chief.saved.set(chief)
        of_chief.finished.set(chief)
        assert of_worker.state(worker) == State(finished=True, saved=True, ready=False)
    # From outside the cluster.
    ask = FirstServer(servers.cluster).ask
    assert ask(lambda session, channel: channel.run.text(session)) == "002"
    assert ask(lambda session, channel: channel.state(session).saved)


def test_a_new_session_of_the_chief_clears_the_flags_of_the_one_before(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(2, 2)
    config = session_config(servers.cluster)
    with tf.Graph().as_default(), tf.compat.v1.Session(servers.target("chief"), config=config) as s:
        channel = Channel(servers.cluster)
        ready, released = ready_flags(2), released_flag(1)
        clear = [flag.clear_op for flag in channel.session_flags(2)]
        s.run(clear)  # None of them is there yet.
        for flag in (channel.finished, channel.saved, channel.stop, channel.ended["worker0"]):
            flag.set(s)
        s.run([released.set_op, left_flag(0).set_op, *(flag.set_op for flag in ready)])
        assert channel.state(s) == State(True, True, True)
        for _ in range(2):
            s.run(clear)
            assert channel.state(s) == State(False, False, False)
            assert channel.running(s) == []  # A worker that has ended does not come back.
            assert not channel.stop.is_set(s)
            flags = (*ready, left_flag(0), released)
            assert s.run([flag.value for flag in flags]) == [False, False, False, True]
            ready[0].set(s)
            assert channel.state(s).ready


DATA = {"_target_": "tests.samples.experiment.Blobs", "token": "a secret"}
TRACKING = TrackingConfig(uri=None, mask=MaskConfig(names=["*token"]))


def test_tasks_that_take_steps_together_have_equally_many_devices() -> None:
    require_agreement(tiny(devices=DevicesConfig(3)), shared_settings(tiny()))
    two, others, three = (
        tiny(devices=DevicesConfig(count), cluster=ClusterConfig(mode=ClusterMode.collective))
        for count in (2, ["cpu:2", 3], 3)
    )
    require_agreement(others, shared_settings(two))
    with pytest.raises(ClusterError, match=r"devices\.count is 3 here and 2 there"):
        require_agreement(three, shared_settings(two))


def test_a_task_with_other_settings_is_refused() -> None:
    of_chief = shared_settings(tiny(data=DATA, tracking=TRACKING))
    assert "secret" not in of_chief
    # What is a task's own may differ, and secrets are not compared.
    alike = tiny(
        cluster=ClusterConfig(max_wait_secs=1.0),
        data={**DATA, "token": "another secret"},
        tracking=TrackingConfig(uri="elsewhere", mask=TRACKING.mask),
        session=SessionConfig(intra_op_threads=1),
        run_dir="elsewhere",
        train=TrainConfig(steps=20, log_every=1, evaluate_every=10, checkpoint_every=1),
    )
    require_agreement(alike, of_chief)
    own = tiny(cluster=ClusterConfig(ps=2), data={**DATA, "size": 3}, tracking=TRACKING, seed=9)
    require_agreement(own, None)
    with pytest.raises(ClusterError) as error:
        require_agreement(own, of_chief)
    (problem,) = error.value.problems
    assert problem.state == (
        "this task has other settings than the chief: cluster.ps is 2 here and 1 "
        "there; data.size is 3 here and not set there; seed is 9 here and 0 there"
    )
