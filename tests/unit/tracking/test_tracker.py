from __future__ import annotations

from mlflow.entities import RunStatus as MlflowRunStatus

from runner.tracking.tracker import RunStatus


def test_the_statuses_of_a_run_are_those_of_mlflow() -> None:
    known = {MlflowRunStatus.to_string(status) for status in MlflowRunStatus.all_status()}
    used = (RunStatus.RUNNING, RunStatus.FINISHED, RunStatus.FAILED, RunStatus.KILLED)
    assert {status.value for status in used} < known
