"""A cluster whose tasks are in this process: servers, sessions and graphs are the real ones."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf
from rich.console import Console

from runner.cluster.local import free_addresses
from runner.cluster.sessions import ClusterTask, start_server
from runner.config.cluster_spec import Addresses, Cluster, Task, addresses_by_type
from runner.config.schema import DevicesConfig
from runner.console import Screen
from runner.system.signals import Interruption
from tests.support.configs import tiny


class Lines:
    """A screen's lines."""

    def __init__(self) -> None:
        self._file = io.StringIO()
        self.screen = Screen(Console(file=self._file, width=300, highlight=False))

    def __call__(self) -> list[str]:
        return self._file.getvalue().splitlines()


class Signalling(Screen):
    """Sends this process a signal with each line."""

    def line(self, text: str) -> None:
        super().line(text)
        signal.raise_signal(signal.SIGTERM)


class InProcess:
    """Servers of one cluster, whose configuration is the chief's."""

    def __init__(self, workers: int, ps: int, devices: int = 1, **changes: Any) -> None:
        found = free_addresses(workers + ps)
        self.cluster = Cluster(
            workers=workers,
            ps=ps,
            addresses=Addresses(found[:1], found[1:workers], found[workers:]),
            task=Task("chief", 0),
            recovery_wait_secs=0.1,
            **{"max_wait_secs": 20.0, **changes},
        )
        spec = addresses_by_type(self.cluster)
        # A server lives as long as its process, and so do the variables on it: each test gets new
        # ones.
        self._targets = {
            (kind, index): start_server(
                tiny(cluster=self.config(kind, index), devices=DevicesConfig(devices))
            )
            for kind, hosts in spec.items()
            for index in range(len(hosts))
        }

    def config(self, kind: str, index: int = 0) -> Cluster:
        """Returns the configuration of a task."""
        return replace(self.cluster, task=Task(kind, index))

    def target(self, kind: str, index: int = 0) -> str:
        """Returns the master of a task's sessions."""
        return self._targets[kind, index]

    def task(self, kind: str, lines: Lines | None = None, **changes: Any) -> ClusterTask:
        """Returns a task, with some fields of the experiment's configuration changed."""
        config = tiny(**{"cluster": self.config(kind), **changes})
        target = "" if kind == "evaluator" else self.target(kind)
        return ClusterTask(config, (lines or Lines()).screen, Interruption(), target)


@pytest.fixture(scope="module")
def in_process() -> Callable[..., InProcess]:
    """Starts the servers of clusters."""
    tf.config.list_physical_devices()
    return InProcess
