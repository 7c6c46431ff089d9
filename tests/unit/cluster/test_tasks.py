"""The tasks of a cluster, their names and their places."""

from __future__ import annotations

from runner.config.choices import Mode
from runner.config.cluster_spec import (
    addresses_by_type,
    has_addresses,
    is_cluster,
    is_task,
    launches,
    own_name,
    parameter_servers,
    replica_index,
    telling_tasks,
    trainers,
)
from runner.config.schema import AddressesConfig, ClusterConfig, TaskConfig
from tests.tiny.configs import tiny


def cluster(kind: str | None = None, index: int = 0) -> ClusterConfig:
    addresses = AddressesConfig(["a:1"], ["b:1", "c:1"], ["d:1"])
    return ClusterConfig(addresses=addresses, task=TaskConfig(kind, index), evaluator=True)


def test_tasks_are_listed_with_their_addresses() -> None:
    assert trainers(cluster()) == {"chief": "a:1", "worker 0": "b:1", "worker 1": "c:1"}
    assert parameter_servers(cluster()) == {"ps 0": "d:1"}
    assert addresses_by_type(cluster())["worker"] == ["b:1", "c:1"]
    assert addresses_by_type(ClusterConfig()) == {}
    assert telling_tasks(cluster()) == ["worker0", "worker1", "evaluator"]


def test_a_task_knows_its_name_and_its_place() -> None:
    assert own_name(cluster("worker", 1)) == "worker1"
    assert own_name(cluster("evaluator", 5)) == "evaluator"
    assert [replica_index(cluster(kind, 1)) for kind in ("chief", "worker")] == [0, 2]


def test_what_a_process_is() -> None:
    local = ClusterConfig(local=True)
    assert (is_cluster(local), has_addresses(local), is_task(local)) == (True, False, False)
    assert not is_cluster(ClusterConfig())
    assert is_task(cluster("ps"))
    assert is_task(cluster("ps"), "ps", "worker")
    assert not is_task(cluster("ps"), "chief")
    assert not is_task(cluster())
    assert launches(tiny(cluster=local))
    assert not launches(tiny(cluster=local, mode=Mode.plan))
    assert not launches(tiny(cluster=cluster("chief")))
