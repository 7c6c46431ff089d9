"""Runs of the tiny experiment that are recorded in a database."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from runner.config.schema import RunConfig, TrackingConfig
from runner.system.status import Status
from runner.tracking.journal import End, read_lines, segments
from runner.tracking.tracking_directory import TrackingDirectory
from tests.tiny.runs import Runs, wait_for


class TrackedRuns(Runs):
    """Runs that are recorded in a database."""

    def __init__(self, folder: Path, database: Path, **changes: Any) -> None:
        super().__init__(folder, **changes)
        self.database = database
        self.uri = f"sqlite:///{database}"
        self.client = MlflowClient(self.uri)

    def config(self, **changes: Any) -> RunConfig:
        tracking = TrackingConfig(uri=self.uri, close_seconds=60.0, patience_seconds=1.0)
        return super().config(tracking=tracking, **changes)

    def run_id(self, number: int = 1) -> str:
        """MLflow's id of a run."""
        run_id = TrackingDirectory(self.directory(number).path).position(self.uri).run_id
        assert run_id is not None
        return run_id

    def seem_killed(self, **changes: Any) -> None:
        """Makes the first run look as if its process and its follower had died on the way."""
        self.client.update_run(self.run_id(), Status.RUNNING.value)
        self.directory().update(status="RUNNING")
        files = TrackingDirectory(self.directory().path)
        for segment in segments(files.journal):
            whole = list(read_lines(segment.path))
            ends = [each.end for each in whole if not isinstance(each.record, End)]
            os.truncate(segment.path, ends[-1])
        last = segments(files.journal)[-1]
        size = last.path.stat().st_size
        position = replace(
            files.position(self.uri), offset=size, sending=size, status="RUNNING", ended=None
        )
        files.write_position(self.uri, replace(position, **changes))

    def settled(self, number: int = 1) -> None:
        """Waits until the store has recorded how a run ended."""
        files = TrackingDirectory(self.directory(number).path)
        wait_for(lambda: files.position(self.uri).status not in (None, "RUNNING"))
