from __future__ import annotations

import logging
from pathlib import Path

import pytest

from runner.config.schema import TrackingConfig
from runner.errors import TrackingError
from runner.system.status import Status
from runner.tracking import RunStore, open_store
from runner.tracking.journal import Dataset
from runner.tracking.tracker import ExportedModel


def test_a_run_is_logged_from_start_to_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = RunStore()
    tracker = store.open(tmp_path, "digits", "digits-1", {"host": "here"}, parent="p")
    tracker.log_parameters({"rate": 0.001, "name": "cnn"})
    tracker.log_dataset(Dataset("digits", "abc", "train", "here", {"examples": 3}))
    tracker.rewind(10)
    tracker.log_metrics({"loss": 0.123456789, "count": 3}, step=20)
    tracker.log_artifact(Path("run/plan.txt"), "plans")
    tracker.log_text("all is well", "report.txt")
    tracker.close(Status.KILLED)
    tracker.close(Status.FINISHED)
    assert caplog.messages == [
        "run digits-1 of digits",
        "tags: host=here",
        "parameters: rate=0.001, name=cnn",
        "train data: digits, digest abc, examples=3",
        "run digits-1: resumes from step 10",
        "step 20: loss=0.123457, count=3",
        "artifact: run/plan.txt",
        "report.txt:\nall is well",
        "run digits-1: KILLED",
    ]
    assert "tracking is off" in tracker.location()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "config", [TrackingConfig(uri=None), TrackingConfig(uri=None, tensorboard=True)]
)
def test_without_mlflow_nothing_is_found_again(config: TrackingConfig, tmp_path: Path) -> None:
    store = open_store(config, {})
    assert (store.run_id(tmp_path), store.recorded(tmp_path)) == (None, False)
    assert (store.store, store.open_command()) == ("", "")
    assert store.finished("digits", {}) == []
    assert store.keep_model(tmp_path, ExportedModel(tmp_path, 1, (), (), {})) is None
    store.settle(tmp_path)
    assert list(tmp_path.iterdir()) == []
    for ask in (store.pin, lambda uri: store.download(uri, ".")):
        with pytest.raises(TrackingError, match="runs:/1/x is in MLflow, and tracking is off"):
            ask("runs:/1/x")
