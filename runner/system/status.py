"""The status of a run, of a trial and of an attempt at one, as it is on disk and in MLflow."""

from __future__ import annotations

from enum import Enum


class Status(str, Enum):
    """The state of a process and its work.

    MLflow knows RUNNING, FINISHED, FAILED and KILLED. A record that says RUNNING while no process
    holds its lock was killed.
    """

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"
    # The sweep's pruner ended it, because others were better.
    PRUNED = "PRUNED"
    # It was never started: the sweep stopped before, or its launcher failed.
    SKIPPED = "SKIPPED"

    @property
    def in_mlflow(self) -> Status:
        """The status in MLflow, which counts a pruned run as killed."""
        return Status.KILLED if self is Status.PRUNED else self

    def __str__(self) -> str:
        return self.value
