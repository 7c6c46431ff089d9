from __future__ import annotations

import math
from pathlib import Path

import pytest
import tensorflow as tf
from runner.tracking.records import Metrics, Parameters, Record, Text
from runner.tracking.tensorboard_run import TensorBoardRun

from runner.system.status import Status


def events(directory: Path) -> list[tuple[str, float, int, float]]:
    return [
        (value.tag, value.simple_value, event.step, event.wall_time)
        for file in sorted(directory.iterdir())
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    ]


def test_metrics_are_events_with_their_step_and_time(tmp_path: Path) -> None:
    run = TensorBoardRun(tmp_path)
    records: list[Record] = [
        Metrics({"loss": 0.5, "accuracy": 0.25}, 1, 1_700_000_000_500),
        Parameters({"rate": 0.1}),
        Metrics({"loss": math.inf}, 2, 1_700_000_001_000),
    ]
    for delivery in run.deliveries(records):
        run.deliver(delivery)
    assert events(tmp_path) == [
        ("loss", 0.5, 1, 1_700_000_000.5),
        ("accuracy", 0.25, 1, 1_700_000_000.5),
        ("loss", math.inf, 2, 1_700_000_001.0),
    ]
    run.finish(Status.FINISHED, "")
    assert list(run.deliveries([Parameters({"rate": 0.1})])) == []
    assert run.refused == ()
    assert run.describe(OSError("full")) == "OSError: full"


def test_event_files_hold_only_metrics(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="hold no Text"):
        TensorBoardRun(tmp_path).deliver(Text("x", "y"))
