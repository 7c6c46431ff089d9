"""Tracking turned off: what a run records goes to the log and nowhere else."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from pathlib import Path

from runner.errors import Problem, TrackingError
from runner.tracking.tracker import RunStatus, RunStore, TrackedRun, Tracker

logger = logging.getLogger(__name__)


class LoggingTracker(Tracker):
    """Writes what one run records to the log, each call as one line.

    Args:
      run_id: the run's id; nothing is stored under it.
      level: the level of the lines.
    """

    def __init__(self, run_id: str, level: int = logging.INFO) -> None:
        self._run_id = run_id
        self._level = level
        self._closed = False

    @property
    def run_id(self) -> str:
        """The id given."""
        return self._run_id

    def log_parameters(self, parameters: Mapping[str, object]) -> None:
        """Logs all of them in one line."""
        logger.log(self._level, "parameters: %s", _listed(parameters))

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Logs step and values, to six digits."""
        logger.log(self._level, "step %d: %s", step, _listed(metrics))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Logs all of them in one line."""
        logger.log(self._level, "tags: %s", _listed(tags))

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Logs the path; nothing is copied."""
        logger.log(self._level, "artifact: %s", path)

    def log_text(self, text: str, file: str) -> None:
        """Logs the text."""
        logger.log(self._level, "%s:\n%s", file, text)

    def close(self, status: RunStatus) -> None:
        """Logs the status."""
        if not self._closed:
            logger.log(self._level, "run %s: %s", self._run_id, status.value)
        self._closed = True


class LoggingStore(RunStore):
    """Opens runs that are only logged, and finds none.

    Args:
      level: the level of the log lines.
    """

    def __init__(self, level: int = logging.INFO) -> None:
        self._level = level

    def connect(self) -> None:
        """Does nothing: there is no store to reach."""

    def start(
        self,
        experiment: str,
        run_name: str,
        tags: Mapping[str, str],
        parent: str | None = None,
    ) -> Tracker:
        """Returns a tracker with a new random id."""
        tracker = LoggingTracker(uuid.uuid4().hex, self._level)
        logger.log(self._level, "run %s: %s of %s", tracker.run_id, run_name, experiment)
        tracker.set_tags(tags)
        return tracker

    def resume(self, run_id: str) -> Tracker:
        """Returns a tracker with the same id."""
        logger.log(self._level, "run %s: resumed", run_id)
        return LoggingTracker(run_id, self._level)

    def finished(self, experiment: str, tags: Mapping[str, str]) -> list[TrackedRun]:
        """Returns an empty list: nothing is stored."""
        return []

    def mark(self, run_id: str, status: RunStatus) -> None:
        """Logs the status."""
        logger.log(self._level, "run %s: %s", run_id, status.value)

    @property
    def store(self) -> str:
        """Returns an empty string: there is no store."""
        return ""

    def pin(self, uri: str) -> str:
        """Raises TrackingError: nothing is stored."""
        raise TrackingError(
            Problem(
                f"{uri} is in MLflow, and tracking is off",
                "tracking.uri is null, so there is no store to ask for it",
                "set tracking.uri to the store that has it, or name a path",
            )
        )

    def download(self, uri: str, folder: str) -> str:
        """Raises TrackingError: nothing is stored."""
        return self.pin(uri)

    def location(self, run_id: str | None = None) -> str:
        """Returns words that say so."""
        return "only in the log: tracking is off"

    def open_command(self) -> str:
        """Returns an empty string: there is nothing to open."""
        return ""


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name}={f'{value:.6g}' if isinstance(value, float) else value}"
        for name, value in values.items()
    )
