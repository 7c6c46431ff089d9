"""A task's training graph beside parameter servers: places its variables, selects its batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import tensorflow as tf

from runner.config.choices import Placement
from runner.config.cluster_spec import replica_index, task_of
from runner.config.schema import PS, ClusterConfig
from runner.graph.replica import Replica, VariablePlacement

# Operations that hold variables; by default lookup tables would be placed on the servers too.
_VARIABLES = ("Variable", "VariableV2", "VarHandleOp")


class ClusterReplica(Replica):
    """The training graph of one task of a cluster with parameter servers.

    Args:
      cluster: the resolved configuration. Before the tasks are known the graph is the chief's.

    Attributes:
      count: how many tasks train; each reads separate batches.
    """

    def __init__(self, cluster: ClusterConfig) -> None:
        self._cluster = cluster
        self.count = cluster.workers

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Places operations that are added to the default graph in it: variables on the servers."""
        cluster, task = self._cluster, task_of(self._cluster)
        by_size = cluster.placement is Placement.by_size
        device_of = tf.compat.v1.train.replica_device_setter(
            ps_tasks=cluster.ps,
            ps_device=f"/job:{PS}",
            worker_device=f"/job:{task.type}/task:{task.index}",
            ps_ops=list(_VARIABLES),
            ps_strategy=BySize(cluster.ps) if by_size else None,
        )
        with tf.compat.v1.get_default_graph().device(device_of):
            yield

    def local_scope(self) -> AbstractContextManager[object]:
        """Places variables of this task alone within."""
        task = task_of(self._cluster)
        scope: AbstractContextManager[object] = tf.device(f"/job:{task.type}/task:{task.index}")
        return scope

    def placement(self, variables: Mapping[str, tf.Variable]) -> VariablePlacement:
        """Returns the devices of the named variables."""
        devices = {name: str(variable.device) for name, variable in variables.items()}
        return VariablePlacement(self._cluster.placement.value, devices)

    def shard(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the batches of this task, which are every `count`-th.

        All tasks must see the same order, so that it is deterministic.
        """
        if self.count == 1:
            return dataset
        options = tf.data.Options()
        options.deterministic = True
        return dataset.with_options(options).shard(self.count, replica_index(self._cluster))


class BySize:
    """A strategy for `replica_device_setter`: the parameter server with the fewest bytes so far.

    TensorFlow removed its `GreedyLoadBalancingStrategy` with `tf.contrib`.
    """

    def __init__(self, servers: int) -> None:
        self._bytes = [0] * servers

    def __call__(self, operation: tf.Operation) -> int:
        """Returns the index of the server for a variable's operation."""
        index = self._bytes.index(min(self._bytes))
        # An unknown shape counts as one element.
        elements = tf.TensorShape(operation.get_attr("shape")).num_elements() or 1
        self._bytes[index] += elements * tf.as_dtype(operation.get_attr("dtype")).size
        return index
