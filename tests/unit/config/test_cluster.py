"""A configuration and `TF_CONFIG` together describe a cluster, or every mistake is reported."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from runner.config.choices import Mode, Placement
from runner.config.cluster import resolve_cluster
from runner.config.cluster_spec import Addresses, Cluster, Task, configured, task_of
from runner.config.schema import ClusterConfig, ClusterMode, RunConfig, TrainConfig
from runner.errors import ConfigError
from tests.support.configs import tiny

CHIEF, WORKER, PS = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
ADDRESSES = {"chief": [CHIEF], "worker": [WORKER], "ps": [PS]}


COLLECTIVE = ClusterMode.collective


def tf_config(kind: str = "worker", index: int = 0, **content: Any) -> dict[str, str]:
    task = {"type": kind, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": ADDRESSES, "task": task, **content})}


def states(config: RunConfig, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as error:
        resolve_cluster(config, environ or {})
    return [problem.state for problem in error.value.problems]


def test_the_variable_names_tasks_and_addresses() -> None:
    found = resolve_cluster(tiny(cluster=ClusterConfig(max_wait_secs=5)), tf_config()).cluster
    task, addresses = Task("worker", 0), Addresses(**ADDRESSES)
    assert found == Cluster(workers=2, ps=1, max_wait_secs=5, addresses=addresses, task=task)
    assert configured(found) == ClusterConfig(workers=2, ps=1, max_wait_secs=5)


def test_a_chief_alone_is_not_a_cluster() -> None:
    alone = {"TF_CONFIG": '{"cluster": {"chief": ["a:1"]}, "task": {"type": "chief"}}'}
    assert resolve_cluster(tiny(), alone).cluster == ClusterConfig()


def test_other_modes_than_training_need_only_the_chief() -> None:
    for mode in (Mode.evaluate, Mode.export):
        config = tiny(mode=mode)
        assert resolve_cluster(config, {}) == config
        assert resolve_cluster(config, tf_config("chief")) == config


def test_a_task_started_by_a_local_cluster_is_one() -> None:
    found = resolve_cluster(
        tiny(cluster=ClusterConfig(local=True)), tf_config(environment="runner-local")
    )
    assert task_of(found.cluster) == Task("worker", 0)


def test_an_evaluator_needs_no_address() -> None:
    found = resolve_cluster(tiny(), tf_config("evaluator", 0)).cluster
    assert (task_of(found).type, found.evaluator) == ("evaluator", True)
    assert not resolve_cluster(tiny(), tf_config()).cluster.evaluator
    listed = tf_config(cluster={**ADDRESSES, "evaluator": ["e:1"]})
    assert resolve_cluster(tiny(), listed).cluster.evaluator


def test_workers_without_a_chief_are_a_cluster() -> None:
    workers = tf_config("worker", 0, cluster={"worker": [CHIEF, WORKER], "ps": [PS]})
    found = resolve_cluster(tiny(), workers).cluster
    assert (task_of(found), found.workers) == (Task("chief", 0), 2)
    assert (
        resolve_cluster(tiny(), tf_config(cluster={"worker": [CHIEF]})).cluster == ClusterConfig()
    )


def test_a_collective_cluster_has_no_parameter_servers() -> None:
    local = ClusterConfig(local=True, mode=COLLECTIVE, workers=3)
    assert resolve_cluster(tiny(cluster=local), {}).cluster.ps == 0
    workers = tf_config("worker", 1, cluster={"worker": [CHIEF, WORKER]})
    found = resolve_cluster(tiny(cluster=ClusterConfig(mode=COLLECTIVE)), workers).cluster
    assert (task_of(found), found.workers, found.ps) == (Task("worker", 0), 2, 0)
    averaged = tiny(cluster=local, train=TrainConfig(ema_decay=0.9))
    assert resolve_cluster(averaged, {}).cluster.workers == 3


def test_a_port_in_use_is_reported_before_anything_starts() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        environ = tf_config("ps", cluster={**ADDRESSES, "ps": [address]})
        assert states(tiny(), environ) == [
            f"ps 0 is to listen at {address}, and its port is in use"
        ]
        assert resolve_cluster(tiny(mode=Mode.plan), environ).cluster.ps == 1


# What tests/unit/config/mistakes.txt does not show.
@pytest.mark.parametrize(
    ("changes", "environ", "expected"),
    [
        (
            {},
            tf_config("ps", 3, cluster={"worker": ["a:1", "b"], "ps": ["a:1"]}),
            [
                "TF_CONFIG: worker 0 is at 'b'",
                "TF_CONFIG: this task is ps 3, and there is 1 of that type",
            ],
        ),
        (
            {},
            tf_config("ps", cluster={"ps": ["a:1"]}),
            ["TF_CONFIG: there is no chief"],
        ),
        (
            {},
            tf_config("chief", cluster={"chief": ["a:1", "b:1"], "ps": ["c:1"]}),
            ["TF_CONFIG: there are 2 chiefs"],
        ),
        (
            {"cluster": ClusterConfig(evaluator=True, placement=Placement.by_size, restarts=1)},
            {},
            [
                "cluster.restarts is 1 without a cluster",
                "cluster.evaluator is true without a cluster",
                "cluster.placement is by_size without a cluster",
            ],
        ),
        (
            {"cluster": ClusterConfig(workers=3, ps=2, restarts=1)},
            tf_config(),
            [
                "cluster.workers is 3 beside TF_CONFIG",
                "cluster.ps is 2 beside TF_CONFIG",
                "cluster.restarts is 1 beside TF_CONFIG",
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
                "cluster.ps is 2 beside collective updates",
                "cluster.placement is by_size beside collective updates",
                "cluster.mode is collective beside one worker",
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
            ["cluster.mode is collective without a cluster"],
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
    assert (
        resolve_cluster(tiny(cluster=alone, train=TrainConfig(ema_decay=0.9)), {}).cluster == alone
    )
    train = TrainConfig(ema_decay=0.9, evaluate_ema=False)
    assert resolve_cluster(tiny(train=train), tf_config("ps")).cluster.workers == 2
