"""Variables are spread over parameter servers, and batches over workers."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from runner.cluster.task_replica import ClusterReplica
from runner.config.choices import Placement
from runner.config.cluster_spec import Cluster, Task
from runner.graph.build import build_graph
from tests.support.configs import PLAIN, tiny

v1 = tf.compat.v1


def cluster(kind: str = "chief", index: int = 0, **changes: Any) -> Cluster:
    return Cluster(**{"local": True, "workers": 3, "task": Task(kind, index), **changes})


@pytest.mark.parametrize(
    ("placement", "servers"), [("round_robin", [0, 1, 0]), ("by_size", [0, 1, 1])]
)
def test_variables_are_placed_in_turn_or_by_size(placement: str, servers: list[int]) -> None:
    replica = ClusterReplica(cluster(ps=2, placement=Placement[placement]))
    with tf.Graph().as_default(), replica.scope():
        for name, size in (("large", 100), ("small", 1), ("medium", 10)):
            v1.get_variable(name, [size], use_resource=True)
        found = [variable.device for variable in v1.global_variables()]
    assert found == [f"/job:ps/task:{server}" for server in servers]


def test_everything_else_is_on_the_task_itself() -> None:
    replica = ClusterReplica(cluster("worker", 1, ps=2))
    built = build_graph(tiny(**PLAIN), "validation", train=True, replica=replica)
    places = {
        kind: {
            operation.device for operation in built.graph.get_operations() if operation.type == kind
        }
        for kind in ("IteratorV2", "MatMul")
    }
    assert places["IteratorV2"] == places["MatMul"] == {"/job:worker/task:1"}
    held = {name: variable.device for name, variable in built.variables.items()}
    assert {*held.values()} == {"/job:ps/task:0", "/job:ps/task:1"}
    assert held["body/kernel/Adam"] == held["body/kernel"], "one operation updates both"
    with built.graph.as_default():
        assert {each.device for each in v1.local_variables()} == {"/job:worker/task:1"}
