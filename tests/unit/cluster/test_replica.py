"""Variables are spread over parameter servers, and batches over workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from runner.cluster.replica import ClusterReplica
from runner.config.choices import Placement
from runner.config.schema import ClusterConfig, TaskConfig
from runner.errors import ConfigError
from runner.graph.build import build_graph
from runner.graph.replica import Replica
from tests.tiny.configs import PLAIN, tiny

v1 = tf.compat.v1


def cluster(kind: str | None = "chief", index: int = 0, **changes: Any) -> ClusterConfig:
    return ClusterConfig(
        **{"local": True, "workers": 3, "task": TaskConfig(kind, index), **changes}
    )


def devices(config: ClusterConfig, make: Callable[[], Any]) -> list[str]:
    replica = ClusterReplica(config)
    with tf.Graph().as_default(), replica.scope(), replica.partitioned():
        make()
        return [each.device for each in v1.global_variables()]


def three() -> None:
    for name, size in (("large", 100), ("small", 1), ("medium", 10)):
        v1.get_variable(name, [size], use_resource=True)


def test_variables_are_placed_in_turn_or_by_size() -> None:
    in_turn = devices(cluster(ps=2), three)
    assert in_turn == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]
    by_size = devices(cluster(ps=2, placement=Placement.by_size), three)
    assert by_size == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:1"]


def test_everything_else_is_on_the_task_itself() -> None:
    replica = ClusterReplica(cluster("worker", 1, ps=2))
    graph = build_graph(tiny(**PLAIN), "validation", train=True, replica=replica).graph
    places = {
        kind: {each.device for each in graph.get_operations() if each.type == kind}
        for kind in ("IteratorV2", "MatMul", "StatefulPartitionedCall", "VarHandleOp")
    }
    assert places["IteratorV2"] == places["StatefulPartitionedCall"] == {"/job:worker/task:1"}
    assert places["VarHandleOp"] == {"/job:ps/task:0", "/job:ps/task:1"}


def test_large_variables_are_cut() -> None:
    def make() -> None:
        v1.get_variable("table", [10, 8], use_resource=True)
        v1.get_variable("bias", [8], use_resource=True)

    found = devices(cluster(ps=2, partition_bytes=160), make)
    assert Counter(found) == {"/job:ps/task:0": 2, "/job:ps/task:1": 1}


def test_asking_for_parts_where_none_are_made_is_refused() -> None:
    replica = ClusterReplica(cluster(partition_bytes=16))
    with pytest.raises(ConfigError, match="partition_bytes is 16, and cuts no variable"):
        build_graph(tiny(**PLAIN), "validation", train=True, replica=replica)


def test_batches_are_dealt_out_without_overlap() -> None:
    def batches(replica: Replica) -> list[list[int]]:
        shuffled = tf.data.Dataset.range(12).shuffle(12, seed=7).batch(2)
        return [each.tolist() for each in replica.shard(shuffled).as_numpy_iterator()]

    tasks = (cluster(), cluster("worker", 0), cluster("worker", 1))
    dealt = [batches(ClusterReplica(task)) for task in tasks]
    assert [each for turn in zip(*dealt, strict=True) for each in turn] == batches(Replica())
