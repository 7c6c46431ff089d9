from __future__ import annotations

from mlflow.entities import RunStatus as MlflowRunStatus

from runner.tracking.tracker import RunStatus


def test_every_status_is_one_of_mlflow() -> None:
    known = {MlflowRunStatus.to_string(status) for status in MlflowRunStatus.all_status()}
    assert {status.value for status in RunStatus} < known
