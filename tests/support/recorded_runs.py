"""Runs recorded in MLflow, and how they are read back."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from mlflow import MlflowClient

from runner.system.status import Status
from runner.tracking.journal import Record
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.tracking_directory import RunIdentity


def identity(
    experiment: str = "digits", run_name: str = "one", tags: Mapping[str, str] | None = None
) -> RunIdentity:
    return RunIdentity(uuid.uuid4().hex, experiment, run_name, tags or {})


def record(
    store: MlflowStore,
    *records: Record,
    experiment: str = "digits",
    tags: Mapping[str, str] | None = None,
    status: Status = Status.FINISHED,
) -> str:
    """Records a whole run and returns its id."""
    run = store.find_or_create(identity(experiment, tags=tags), None, None)
    for delivery in run.deliveries(records):
        run.deliver(delivery)
    run.finish(status, "")
    return run.run_id


def steps(client: MlflowClient, run_id: str, key: str) -> list[int]:
    return sorted(metric.step for metric in client.get_metric_history(run_id, key))
