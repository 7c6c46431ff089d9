"""Sessions of a task: what they see, and where they leave variables."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

from runner.cluster.replica import ClusterReplica
from runner.cluster.server import naming_the_missing, session_config, start_server
from runner.config.cluster_spec import free_addresses
from runner.config.schema import AddressesConfig, ClusterConfig, TaskConfig
from runner.errors import ClusterError, ConfigError, LostServerError
from runner.graph.build import build_graph
from tests.tiny.configs import tiny
from tests.unit.cluster.conftest import InProcess

v1 = tf.compat.v1


@pytest.mark.parametrize("model", ["tests.tiny.odd.Recurrent", "tests.tiny.odd.PlainModel"])
def test_variables_read_in_a_loop_or_in_parts_stay_on_their_servers(
    in_process: Callable[..., InProcess], model: str
) -> None:
    cut = 32 if model.endswith("PlainModel") else None
    servers = in_process(2, 2, partition_bytes=cut)
    replica = ClusterReplica(servers.task("worker"))
    config = tiny(model={"_target_": model})
    built = build_graph(config, "validation", train=True, replica=replica)
    training = built.training
    assert training is not None
    session_settings = session_config(servers.task("worker"))
    with v1.Session(servers.target("worker"), built.graph, session_settings) as session:
        session.run([each.initializer for each in built.variables.values()])
        session.run(training.input_initializer)
        losses = [session.run((training.values["loss"], training.train_op))[0] for _ in range(30)]
    assert losses[-1] < losses[0]
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
    assert {each.device for each in built.variables.values()} == {
        "/job:ps/task:0",
        "/job:ps/task:1",
    }


def test_sessions_see_the_servers_and_their_own_task() -> None:
    cluster = ClusterConfig(task=TaskConfig("worker", 1), max_wait_secs=3.0)
    assert list(session_config(cluster).device_filters) == ["/job:ps", "/job:worker/task:1"]
    assert session_config(cluster).operation_timeout_in_ms == 0
    cluster.synchronous = True
    assert session_config(cluster).operation_timeout_in_ms == 3000


def test_a_process_that_is_no_task_has_no_server() -> None:
    with pytest.raises(ValueError, match="no task of a cluster"):
        start_server(tiny())


def test_an_address_that_cannot_be_had_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise tf.errors.UnknownError(None, None, "Could not start gRPC server")

    monkeypatch.setattr(v1.train, "Server", refuse)
    addresses = AddressesConfig(["a:1"], [], ["b:1"])
    config = tiny(cluster=ClusterConfig(addresses=addresses, task=TaskConfig("ps", 0)))
    with pytest.raises(ConfigError, match=r"^ps 0 cannot listen at b:1\n  cause: Could not start"):
        start_server(config)


def test_a_step_that_waits_too_long_is_explained(in_process: Callable[..., InProcess]) -> None:
    late = tf.errors.DeadlineExceededError(None, None, "late")
    chief, worker, server = free_addresses(3)
    cluster = ClusterConfig(addresses=AddressesConfig([chief], [worker], [server]))
    with (
        pytest.raises(ClusterError, match=r"chief at .*, worker 0 at .*, ps 0 at .* do not answer"),
        naming_the_missing(cluster),
    ):
        raise late
    with (
        pytest.raises(ClusterError, match="a step has not ended within 20 s"),
        naming_the_missing(in_process(1, 1).cluster),
    ):
        raise late


@pytest.mark.parametrize("error", [tf.errors.UnavailableError, tf.errors.AbortedError])
def test_a_server_that_is_lost_at_the_end_asks_for_another_start(
    error: type[tf.errors.OpError],
) -> None:
    server, other = free_addresses(2)
    cluster = ClusterConfig(addresses=AddressesConfig(["a:1"], [], [server, other]))
    with (
        pytest.raises(
            LostServerError, match=rf"ps 0 at {server}, ps 1 at {other} was lost"
        ) as found,
        naming_the_missing(cluster),
    ):
        raise error(None, None, "Socket closed")
    assert found.value.exit_code == 137
