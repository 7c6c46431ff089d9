"""A configuration and `TF_CONFIG` together describe a cluster, or every mistake is reported."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from typing import Any

import pytest

from runner.config.choices import Mode, Placement
from runner.config.cluster import resolve
from runner.config.schema import (
    AddressesConfig,
    ClusterConfig,
    ClusterMode,
    RunConfig,
    TaskConfig,
    TrainConfig,
)
from runner.errors import ConfigError
from tests.tiny.configs import tiny

CHIEF, WORKER, PS = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
ADDRESSES = {"chief": [CHIEF], "worker": [WORKER], "ps": [PS]}


COLLECTIVE = ClusterMode.collective


def tf_config(kind: str = "worker", index: int = 0, **content: Any) -> dict[str, str]:
    task = {"type": kind, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": ADDRESSES, "task": task, **content})}


def addressed(kind: str | None = "worker", index: int = 0, **addresses: Any) -> ClusterConfig:
    task = TaskConfig(kind, index)
    return ClusterConfig(addresses=AddressesConfig(**{**ADDRESSES, **addresses}), task=task)


def states(config: RunConfig, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as error:
        resolve(config, environ or {})
    return [problem.state for problem in error.value.problems]


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


def test_a_collective_cluster_has_no_parameter_servers() -> None:
    local = ClusterConfig(local=True, mode=COLLECTIVE, workers=3)
    assert resolve(tiny(cluster=local), {}).cluster.ps == 0
    workers = tf_config("worker", 1, cluster={"worker": [CHIEF, WORKER]})
    found = resolve(tiny(cluster=ClusterConfig(mode=COLLECTIVE)), workers).cluster
    assert (found.task, found.workers, found.ps) == (TaskConfig("worker", 0), 2, 0)
    averaged = tiny(cluster=local, train=TrainConfig(ema_decay=0.9))
    assert resolve(averaged, {}).cluster.workers == 3


def test_a_port_in_use_is_reported_before_anything_starts() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        cluster = addressed("ps", ps=[address])
        assert states(tiny(cluster=cluster)) == [
            f"ps 0 is to listen at {address}, and its port is in use"
        ]
        assert resolve(tiny(cluster=cluster, mode=Mode.plan), {}).cluster.ps == 1


# What tests/unit/config/mistakes.txt does not show.
@pytest.mark.parametrize(
    ("changes", "environ", "expected"),
    [
        (
            {"cluster": addressed("ps", 3, chief=[], worker=["a:1", "b"], ps=["a:1"])},
            {},
            [
                "cluster.addresses: worker 1 is at 'b'",
                "cluster.addresses: there is no chief",
                "cluster.task: this task is ps 3, and there is 1 of that type",
            ],
        ),
        (
            {"cluster": addressed("chief", chief=["a:1", "b:1"])},
            {},
            ["cluster.addresses: there are 2 chiefs"],
        ),
        (
            {"cluster": addressed("worker", 1, worker=["x:1", "y:1"])},
            tf_config(),
            [
                "cluster.addresses and TF_CONFIG contradict each other",
                "cluster.task and TF_CONFIG contradict each other",
            ],
        ),
        (
            {"cluster": ClusterConfig(local=True, task=TaskConfig("worker", 0))},
            {},
            ["cluster.local is true, and there are cluster.addresses or a cluster.task"],
        ),
        (
            {"cluster": ClusterConfig(evaluator=True, placement=Placement.by_size, restarts=1)},
            {},
            [
                "cluster.restarts is 1, cluster.evaluator is true, cluster.placement is by_size, "
                "and there is no cluster"
            ],
        ),
        (
            {"cluster": replace(addressed(), workers=3, ps=2, restarts=1)},
            {},
            [
                "cluster.workers is 3, cluster.ps is 2, cluster.restarts is 1, and the tasks have "
                "addresses"
            ],
        ),
        (
            {
                "cluster": ClusterConfig(
                    local=True, mode=COLLECTIVE, ps=2, placement=Placement.by_size
                )
            },
            {},
            [
                "cluster.ps is 2, cluster.placement is by_size, and cluster.mode is collective",
                "cluster.mode is collective, and cluster.workers is 1",
            ],
        ),
        (
            {"cluster": ClusterConfig(mode=COLLECTIVE)},
            tf_config(),
            ["TF_CONFIG: there are parameter servers, and cluster.mode is collective"],
        ),
        (
            {"cluster": ClusterConfig(mode=COLLECTIVE)},
            {},
            ["cluster.mode is collective, and there is no cluster"],
        ),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_all_that_contradicts_is_reported_at_once(
    changes: dict[str, Any], environ: dict[str, str], expected: list[str]
) -> None:
    assert states(tiny(**changes), environ) == expected


def test_averages_are_evaluated_where_no_other_worker_trains_them() -> None:
    alone = ClusterConfig(local=True, workers=1)
    assert resolve(tiny(cluster=alone, train=TrainConfig(ema_decay=0.9)), {}).cluster == alone
    train = TrainConfig(ema_decay=0.9, evaluate_ema=False)
    assert resolve(tiny(cluster=addressed("ps"), train=train), {}).cluster.workers == 2
