"""A configuration and `TF_CONFIG` together describe a cluster, or every mistake is reported."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from runner.config.choices import Mode, NonFinite, Placement
from runner.config.cluster import resolve, resolve_trial
from runner.config.schema import (
    AddressesConfig,
    ClusterConfig,
    NonFiniteConfig,
    RunConfig,
    ScaffoldConfig,
    TaskConfig,
    TrainConfig,
    VariablesConfig,
)
from runner.errors import ConfigError, Problem
from tests.tiny.configs import tiny

CHIEF, WORKER, PS = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
ADDRESSES = {"chief": [CHIEF], "worker": [WORKER], "ps": [PS]}


def tf_config(kind: str = "worker", index: int = 0, **content: Any) -> dict[str, str]:
    task = {"type": kind, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": ADDRESSES, "task": task, **content})}


def addressed(kind: str | None = "worker", index: int = 0, **addresses: Any) -> ClusterConfig:
    task = TaskConfig(kind, index)
    return ClusterConfig(addresses=AddressesConfig(**{**ADDRESSES, **addresses}), task=task)


def problems(config: RunConfig, environ: dict[str, str] | None = None) -> list[Problem]:
    with pytest.raises(ConfigError) as error:
        resolve(config, environ or {})
    return list(error.value.problems)


def states(cluster: ClusterConfig, environ: dict[str, str] | None = None) -> list[str]:
    return [problem.state for problem in problems(tiny(cluster=cluster), environ)]


def test_one_process_is_left_alone() -> None:
    config = tiny()
    assert resolve(config, {}) == config


def test_addresses_and_tasks_come_from_either() -> None:
    expected = ClusterConfig(
        workers=2, ps=1, addresses=AddressesConfig(**ADDRESSES), task=TaskConfig("worker", 0)
    )
    assert resolve(tiny(), tf_config()).cluster == expected
    assert resolve(tiny(cluster=addressed()), {}).cluster == expected
    assert resolve(tiny(cluster=addressed()), tf_config()).cluster == expected


def test_a_chief_alone_is_not_a_cluster() -> None:
    alone = {"TF_CONFIG": '{"cluster": {"chief": ["a:1"]}, "task": {"type": "chief"}}'}
    assert resolve(tiny(), alone).cluster == ClusterConfig()


def test_a_plan_needs_no_task_and_other_modes_only_the_chief() -> None:
    assert resolve(tiny(cluster=addressed(None), mode=Mode.plan), {}).cluster.workers == 2
    for mode in (Mode.evaluate, Mode.export):
        config = tiny(mode=mode)
        assert resolve(config, {}) == config
        assert resolve(config, tf_config("chief")) == config


def test_only_one_task_evaluates() -> None:
    expected = "mode is evaluate, and this process is worker 0 of a cluster"
    (problem,) = problems(tiny(mode=Mode.evaluate), tf_config())
    assert problem.state == expected
    (problem,) = problems(tiny(mode=Mode.evaluate, cluster=addressed()))
    assert problem.state == expected


def test_a_task_started_by_a_local_cluster_is_one() -> None:
    found = resolve(tiny(cluster=ClusterConfig(local=True)), tf_config(environment="runner-local"))
    assert found.cluster.task == TaskConfig("worker", 0)


def test_an_evaluator_needs_no_address() -> None:
    found = resolve(tiny(), tf_config("evaluator", 7)).cluster
    assert (found.task.type, found.evaluator) == ("evaluator", True)
    assert not resolve(tiny(), tf_config()).cluster.evaluator
    listed = tf_config(cluster={**ADDRESSES, "evaluator": ["e:1"]})
    assert resolve(tiny(), listed).cluster.evaluator


def test_workers_without_a_chief_are_a_cluster() -> None:
    workers = tf_config("worker", 0, cluster={"worker": [CHIEF, WORKER], "ps": [PS]})
    found = resolve(tiny(), workers).cluster
    assert (found.task, found.workers) == (TaskConfig("chief", 0), 2)
    assert resolve(tiny(), tf_config(cluster={"worker": [CHIEF]})).cluster == ClusterConfig()


def test_all_mistakes_in_addresses_are_reported_at_once() -> None:
    cluster = addressed("ps", 3, chief=[], worker=["a:1", "b"], ps=["a:1"])
    assert states(cluster) == [
        "cluster.addresses: worker 1 is at 'b'",
        "cluster.addresses: there is no chief",
        "cluster.addresses: worker 0 and ps 0 are both at a:1",
        "cluster.task: this task is ps 3, and there is 1 of that type",
    ]


def test_two_chiefs_and_workers_without_servers_are_refused() -> None:
    cluster = addressed("chief", chief=["a:1", "b:1"], ps=[])
    assert states(cluster) == [
        "cluster.addresses: there are 2 chiefs",
        "cluster.addresses: there are workers and no ps",
    ]


def test_a_port_in_use_is_reported_before_anything_starts() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        cluster = addressed("ps", ps=[address])
        assert states(cluster) == [f"ps 0 is to listen at {address}, and its port is in use"]
        assert resolve(tiny(cluster=cluster, mode=Mode.plan), {}).cluster.ps == 1


def test_contradictions_with_the_environment_are_reported() -> None:
    other = addressed("worker", 1, worker=["x:1", "y:1"])
    assert states(other, tf_config()) == [
        "cluster.addresses and TF_CONFIG contradict each other",
        "cluster.task and TF_CONFIG contradict each other",
    ]
    local = ClusterConfig(local=True)
    assert states(local, tf_config()) == ["cluster.local is true, and TF_CONFIG is set"]


def test_a_local_cluster_takes_no_task() -> None:
    cluster = ClusterConfig(local=True, task=TaskConfig("worker", 0))
    assert states(cluster) == ["cluster.local is true, and cluster.task.type is worker"]


def test_settings_without_a_cluster_are_refused() -> None:
    cluster = ClusterConfig(
        workers=4, synchronous=True, placement=Placement.by_size, partition_bytes=8
    )
    assert states(cluster) == [
        "cluster.workers is 4, cluster.synchronous is true, cluster.placement is by_size, "
        "cluster.partition_bytes is 8, and there is no cluster"
    ]
    assert states(ClusterConfig(evaluator=True)) == [
        "cluster.evaluator is true, and there is no cluster"
    ]


def test_settings_that_the_addresses_contradict_are_refused() -> None:
    cluster = addressed()
    cluster.workers, cluster.ps, cluster.restarts = 3, 2, 1
    assert states(cluster) == [
        "cluster.workers is 3, and cluster.addresses names 2",
        "cluster.ps is 2, and cluster.addresses names 1",
        "cluster.restarts is 1, and cluster.addresses names the tasks",
    ]
    cluster.workers, cluster.ps, cluster.restarts = 2, 1, 0
    assert resolve(tiny(cluster=cluster), {}).cluster.workers == 2


def test_the_tasks_of_a_cluster_do_not_sweep() -> None:
    config = tiny()
    assert resolve_trial(config, {}) == config
    with pytest.raises(ConfigError, match="this process is worker 0 of a cluster, and is to sweep"):
        resolve_trial(config, tf_config())


def test_backup_replicas_need_synchronous_updates_and_leave_one() -> None:
    assert states(ClusterConfig(local=True, workers=2, backup=1)) == [
        "cluster.backup is 1, and cluster.synchronous is false"
    ]
    assert states(ClusterConfig(local=True, workers=2, backup=2, synchronous=True)) == [
        "cluster.backup is 2, and 2 workers train"
    ]


def test_what_several_processes_cannot_do_is_refused() -> None:
    scaffold = ScaffoldConfig(VariablesConfig(["*"]), freeze_until_step=3)
    config = tiny(
        cluster=ClusterConfig(local=True, synchronous=True),
        scaffolds={"body": scaffold},
        model={"_target_": "a.B", "dtype_policy": "mixed_float16", "jit_compile": True},
        train=TrainConfig(ema_decay=0.9, non_finite=NonFiniteConfig(action=NonFinite["rollback"])),
    )
    assert [problem.state for problem in problems(config)] == [
        "train.non_finite.action is rollback, in a cluster",
        "model.jit_compile is true, in a cluster",
        "scaffolds.body has a schedule of its own, and cluster.synchronous is true",
        "model.dtype_policy is mixed_float16, and cluster.synchronous is true",
        "train.ema_decay is 0.9, and cluster.synchronous is true",
    ]


def test_averages_are_not_evaluated_on_servers_that_others_train_on() -> None:
    train = TrainConfig(ema_decay=0.9)
    config = tiny(cluster=addressed("ps"), train=train)
    (problem,) = problems(config)
    assert problem.state == ("train.ema_decay is 0.9 with train.evaluate_ema, and 2 workers train")
    assert problem.remedy.startswith("train.evaluate_ema=false evaluates the weights")
    alone = ClusterConfig(local=True, workers=1)
    assert resolve(tiny(cluster=alone, train=train), {}).cluster == alone
    train.evaluate_ema = False
    assert resolve(config, {}).cluster.workers == 2
