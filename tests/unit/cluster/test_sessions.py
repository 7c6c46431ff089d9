"""Sessions are made when the tasks they need are there, and report a lost server as such."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf

from runner.cluster.channel import FirstServer, shared_settings
from runner.cluster.evaluator import send
from runner.cluster.local import free_addresses
from runner.cluster.sessions import (
    ClusterChiefSessionCreator,
    ClusterTask,
    ClusterWorkerSessionCreator,
    must_end,
    naming_missing_tasks,
    session_config,
)
from runner.cluster.task_replica import ClusterReplica
from runner.cluster.worker import missing_of_model
from runner.config.cluster_spec import Addresses, Cluster, Task
from runner.config.schema import TrainConfig
from runner.errors import ClusterError, InterruptedRunError, LostServerError
from runner.graph.build import build_graph
from runner.graph.built_graph import BuiltGraph
from runner.session.cached_session import CachedSession
from runner.system.signals import Interruption
from tests.samples.graphs import opened, training_of
from tests.support.configs import tiny
from tests.unit.cluster.conftest import InProcess, Lines, Signalling

v1 = tf.compat.v1


def model() -> None:
    with tf.device("/job:ps/task:0"):
        v1.train.get_or_create_global_step()


def worker_session(servers: InProcess, limit: float, **changes: Any) -> Any:
    cluster = replace(servers.config("worker"), max_wait_secs=limit)
    with tf.Graph().as_default():
        model()
        scaffold = v1.train.Scaffold(ready_for_local_init_op=missing_of_model(1))
        task = servers.task("worker", cluster=cluster, **changes)
        return ClusterWorkerSessionCreator(task, scaffold).create_session()


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
        creator = ClusterChiefSessionCreator(servers.task("chief"), "001")
        for _ in range(2):
            with creator.create_session() as session:
                creator.channel.ended["worker0"].set(session)
        # The chief, started again, waits for no worker that has ended, unless it comes back.
        with creator.create_session() as session:
            assert creator.channel.running(session) == []
            with pytest.raises(ClusterError, match="seed is 9 here and 0 there"):
                worker_session(servers, 5.0, seed=9)
            assert creator.channel.running(session) == []
            worker_session(servers, 5.0).close()
            assert creator.channel.running(session) == ["worker0"]


def test_a_chief_tells_the_servers_its_run_and_settings(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(1, 1)
    task = servers.task("chief")
    with tf.Graph().as_default():
        model()
        creator = ClusterChiefSessionCreator(task, "001")
        channel = creator.channel
        with creator.create_session() as session:
            assert isinstance(session, CachedSession)
            assert channel.run.text(session) == "001"
            assert channel.settings.text(session) == shared_settings(task.config)
            for step in (0, 1):
                channel.send(session, "worker0", {"loss": 0.5}, step=step)
        with creator.create_session() as session:
            # What was sent of a step that is undone is undone with it.
            assert channel.receive(session) == [("worker0", 0, {"loss": 0.5})]


def test_a_worker_prints_which_task_it_waits_for_and_heeds_a_signal(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(2, 1)
    lines = Lines()
    with tf.Graph().as_default(), Interruption().handled() as interruption:
        model()
        scaffold = v1.train.Scaffold(ready_for_local_init_op=missing_of_model(1))
        config = tiny(cluster=servers.config("worker"))
        task = ClusterTask(
            config, Signalling(lines.screen.console), interruption, servers.target("worker")
        )
        with interruption.deferred(), pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
            ClusterWorkerSessionCreator(task, scaffold).create_session()
    address = servers.cluster.addresses.chief[0]
    assert lines() == [f"waits for the chief at {address} to make the model ready, 20 s at most"]


def begin(session: tf.compat.v1.Session, built: BuiltGraph) -> None:
    with built.graph.as_default():
        session.run(v1.global_variables_initializer())
        session.run([v1.local_variables_initializer(), training_of(built).input_initializer])


@pytest.mark.parametrize("model", ["Plain", "Recurrent"])
def test_a_step_with_parameter_servers_is_that_of_one_process(
    model: str, in_process: Callable[..., InProcess]
) -> None:
    servers = in_process(1, 2)
    config = tiny(
        model={"_target_": f"tests.samples.odd.{model}"}, train=TrainConfig(ema_decay=0.9)
    )
    cluster = servers.config("chief")
    built = build_graph(config, "validation", train=True, replica=ClusterReplica(cluster))
    losses = []
    with v1.Session(servers.target("chief"), built.graph, session_config(cluster)) as session:
        begin(session, built)
        training = training_of(built)
        for _ in range(5):
            losses.append(float(session.run((training.loss, training.train_op))[0]))
        values = session.run(dict(built.variables))
    with opened(config) as alone:
        assert losses == pytest.approx(alone.train(5), rel=1e-6)
        for name, value in alone.run(dict(alone.built.variables)).items():
            assert values[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name


def test_variables_read_in_a_loop_stay_on_their_servers(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(2, 2)
    cluster = servers.config("worker")
    config = tiny(model={"_target_": "tests.samples.odd.Recurrent"}, metrics={})
    built = build_graph(config, "validation", train=True, replica=ClusterReplica(cluster))
    training = built.training
    assert training is not None
    with v1.Session(servers.target("worker"), built.graph, session_config(cluster)) as session:
        begin(session, built)
        for _ in range(2):
            session.run(training.train_op)
    with tf.Graph().as_default() as graph:
        held = {}
        for name, variable in built.variables.items():
            with tf.device(variable.device):
                handle = tf.raw_ops.VarHandleOp(
                    dtype=variable.dtype,
                    shape=variable.shape,
                    shared_name=variable.handle.op.get_attr("shared_name"),
                )
                held[name] = tf.raw_ops.VarIsInitializedOp(resource=handle)
    with v1.Session(servers.target("chief"), graph, session_config(servers.cluster)) as session:
        assert [name for name, there in session.run(held).items() if not there] == []
    assert {variable.device for variable in built.variables.values()} == {
        "/job:ps/task:0",
        "/job:ps/task:1",
    }


def test_sessions_see_the_servers_and_their_own_task() -> None:
    cluster = Cluster(task=Task("worker", 1), max_wait_secs=3.0)
    assert list(session_config(cluster).device_filters) == ["/job:ps", "/job:worker/task:1"]


def test_a_task_that_others_need_stays_after_a_signal_as_long_as_it_can() -> None:
    assert not must_end(None, needed=False)
    assert must_end(20.0, needed=False)
    assert not must_end(20.0, needed=True)
    assert must_end(1.5, needed=True)


def test_a_first_server_that_is_away_answers_nothing() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        cluster = Cluster(addresses=Addresses(["a:1"], [], [server]))
        first = FirstServer(cluster)
        assert first.ask(lambda session, channel: channel.run.text(session)) is None
        assert not send(first, {"loss": 0.5}, 1)
        first.require_agreement(tiny())


@pytest.mark.parametrize(
    ("raised", "all_answer", "missing"),
    [
        ("DeadlineExceededError", False, "chief at .*, worker 0 at .*, ps 0 at .* do not answer"),
        ("DeadlineExceededError", True, "a step has not ended within 20 s"),
        ("UnavailableError", False, "ps 0 at [^,]* was lost"),
        ("AbortedError", True, "a parameter server was lost"),
    ],
)
def test_a_step_that_is_late_or_cut_off_names_the_missing_tasks(
    in_process: Callable[..., InProcess], raised: str, all_answer: bool, missing: str
) -> None:
    chief, worker, server = free_addresses(3)
    absent = Cluster(addresses=Addresses([chief], [worker], [server]))
    cluster = in_process(1, 1).cluster if all_answer else absent
    with pytest.raises(ClusterError, match=missing) as error, naming_missing_tasks(cluster):
        raise getattr(tf.errors, raised)(None, None, "late, or a socket closed")
    # Such an exit code asks for another start.
    assert (error.value.exit_code == 137) == isinstance(error.value, LostServerError)
    assert isinstance(error.value, LostServerError) == (raised != "DeadlineExceededError")


# Of a run with a server that was killed and started again.
LOST = """Graph execution error:

=====================
CANCELLED: From /job:chief/replica:0/task:0:
RecvFromRemoteAsync is cancelled.
\t [[{{node fifo_queue_DequeueMany_S247}}]]
ABORTED: From /job:ps/replica:0/task:0:
Session handle is not found: ca2d1c. Possibly this worker just restarted.
====================="""


@pytest.mark.parametrize(
    ("message", "raised"),
    [
        (LOST, tf.errors.AbortedError),
        (LOST.replace("/job:ps/", "/job:worker/"), tf.errors.CancelledError),
        ("Step was cancelled by an explicit call", tf.errors.CancelledError),
    ],
)
def test_a_step_that_a_lost_server_cancels_is_aborted(
    message: str, raised: type[tf.errors.OpError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(self: Any, *arguments: Any) -> None:
        raise tf.errors.CancelledError(None, None, message)

    server = v1.train.Server.create_local_server()
    with tf.Graph().as_default(), CachedSession(server.target) as session:
        two = tf.constant(1) + 1
        assert session.run(two) == 2
        monkeypatch.setattr(v1.Session, "run", lose)
        with pytest.raises(raised):
            session.run(two)
