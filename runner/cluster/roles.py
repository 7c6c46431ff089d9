"""What a process does as a task of a cluster that is not the chief."""

from __future__ import annotations

from collections.abc import Callable

from runner.cluster.evaluator import follow_checkpoints
from runner.cluster.parameter_server import serve
from runner.cluster.worker import run_worker
from runner.cluster_config import EVALUATOR, PS, WORKER
from runner.config import RunConfig
from runner.screen import Screen

_ROLES: dict[str | None, Callable[[RunConfig, Screen], None]] = {
    PS: serve,
    WORKER: run_worker,
    EVALUATOR: follow_checkpoints,
}


def run_task(config: RunConfig, screen: Screen | None = None) -> None:
    """Does what the configuration's `cluster.task` says.

    Args:
      config: the configuration with its cluster resolved.
      screen: where to print; by default standard output.

    Raises:
      RunnerError: see the functions of each role.
    """
    _ROLES[config.cluster.task.type](config, screen or Screen())
