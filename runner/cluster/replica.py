"""One of the copies of the training graph: what of it is where, and which batches are its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import tensorflow as tf

from runner.cluster.synchronous import Synchronization
from runner.cluster.tasks import is_cluster, replica_index
from runner.cluster.tf_config import CHIEF, PS
from runner.config import ClusterConfig, Placement
from runner.errors import ConfigError, Problem

# Takes the operation of a variable and returns the index of its parameter server.
Strategy = Callable[[tf.Operation], int]
# Operations that hold variables, as `tf.compat.v1.train.replica_device_setter` finds them.
_VARIABLES = ("Variable", "VariableV2", "AutoReloadVariable", "VarHandleOp")


class Replica:
    """Places a graph on the cluster; without a cluster it changes nothing."""

    def __init__(self, cluster: ClusterConfig | None = None) -> None:
        """Stores the cluster.

        Args:
          cluster: the resolved configuration; None, or one without tasks, for one process. Before
            the tasks are known the graph is the chief's.
        """
        self._cluster = cluster if cluster is not None and is_cluster(cluster) else None

    @property
    def device(self) -> str:
        """The device of everything but variables; empty without a cluster."""
        if self._cluster is None:
            return ""
        task = self._cluster.task
        return f"/job:{task.type or CHIEF}/task:{task.index}"

    @property
    def synchronization(self) -> Synchronization | None:
        """How workers update together; None where each updates on its own."""
        cluster = self._cluster
        if cluster is None or not cluster.synchronous:
            return None
        return Synchronization(cluster.workers - cluster.backup, cluster.workers)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Places what is added to the default graph within."""
        if self._cluster is None:
            yield
            return
        partitioner = None
        if self._cluster.partition_bytes is not None:
            partitioner = tf.compat.v1.variable_axis_size_partitioner(self._cluster.partition_bytes)
        graph = tf.compat.v1.get_default_graph()
        with (
            graph.device(self._device_function()),
            tf.compat.v1.variable_scope(tf.compat.v1.get_variable_scope(), partitioner=partitioner)
            if partitioner
            else nullcontext(),
        ):
            yield
        if partitioner and not any(
            each._get_save_slice_info() is not None for each in tf.compat.v1.global_variables()
        ):
            raise ConfigError(
                Problem(
                    f"cluster.partition_bytes is {self._cluster.partition_bytes}, and cuts no "
                    "variable",
                    "only those of tf.compat.v1.get_variable are cut, if they are larger; Keras "
                    "makes its variables whole",
                    "lower it, make large variables by get_variable, or use "
                    "cluster.placement=by_size alone",
                )
            )

    def shard(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the batches of this replica: of so many in turn, one.

        All replicas must see the same order, so it is made deterministic.
        """
        if self._cluster is None or self._cluster.workers == 1:
            return dataset
        options = tf.data.Options()
        options.deterministic = True
        return dataset.with_options(options).shard(
            self._cluster.workers, replica_index(self._cluster)
        )

    def _device_function(self) -> Callable[[tf.Operation], str]:
        if self._cluster is None:
            raise ValueError("there is no cluster")
        count = self._cluster.ps
        strategy = None if self._cluster.placement is Placement.round_robin else BySize(count)
        function: Callable[[tf.Operation], str] = tf.compat.v1.train.replica_device_setter(
            ps_tasks=count,
            ps_device=f"/job:{PS}",
            worker_device=self.device,
            ps_ops=list(_VARIABLES),
            ps_strategy=strategy,
        )
        return function


class BySize:
    """A strategy for `replica_device_setter`: the parameter server with the fewest bytes so far.

    TensorFlow's own, `GreedyLoadBalancingStrategy`, went with `tf.contrib`.
    """

    def __init__(self, servers: int) -> None:
        """Starts with empty servers."""
        self._bytes = [0] * servers

    def __call__(self, operation: tf.Operation) -> int:
        """Returns the index of the server for a variable's operation."""
        index = min(range(len(self._bytes)), key=lambda each: self._bytes[each])
        shape = tf.TensorShape(operation.get_attr("shape"))
        elements = shape.num_elements() if shape.is_fully_defined() else 1
        self._bytes[index] += elements * tf.as_dtype(operation.get_attr("dtype")).size
        return index
