"""A cluster whose tasks are in this process: servers, sessions and graphs are the real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf

from runner.config.cluster_spec import addresses_by_type, free_addresses
from runner.config.schema import AddressesConfig, ClusterConfig, TaskConfig

# A server lives as long as its process, and so do the variables on it: each test gets new ones.
Servers = dict[tuple[str, int], tf.compat.v1.train.Server]


class InProcess:
    """Servers of one cluster.

    Attributes:
      cluster: the configuration of the chief.
    """

    def __init__(self, workers: int, ps: int, **changes: Any) -> None:
        found = free_addresses(workers + ps)
        self.cluster = ClusterConfig(
            workers=workers,
            ps=ps,
            addresses=AddressesConfig(found[:1], found[1:workers], found[workers:]),
            task=TaskConfig("chief", 0),
            max_wait_secs=20.0,
            recovery_wait_secs=0.1,
            **changes,
        )
        spec = addresses_by_type(self.cluster)
        self._servers: Servers = {
            (kind, index): tf.compat.v1.train.Server(spec, job_name=kind, task_index=index)
            for kind, hosts in spec.items()
            for index in range(len(hosts))
        }

    def task(self, kind: str, index: int = 0) -> ClusterConfig:
        """Returns the configuration of another task."""
        return replace(self.cluster, task=TaskConfig(kind, index))

    def target(self, kind: str, index: int = 0) -> str:
        """Returns the master of a task's sessions."""
        return str(self._servers[kind, index].target)


@pytest.fixture(scope="module")
def in_process() -> Callable[..., InProcess]:
    """Starts the servers of clusters."""
    tf.config.list_physical_devices()
    return InProcess
