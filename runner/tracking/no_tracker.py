"""Tracking turned off: what a run records goes to the log and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from runner.errors import Problem, TrackingError
from runner.tracking.tracker import ExportedModel, RunStatus, RunStore, TrackedRun, Tracker

logger = logging.getLogger(__name__)


class LoggingTracker(Tracker):
    """Writes what one run records to the log, each call as one line.

    Args:
      name: the run's name.
      level: the level of the lines.
    """

    def __init__(self, name: str, level: int = logging.INFO) -> None:
        self._name = name
        self._level = level
        self._closed = False

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

    def log_dataset(
        self, name: str, digest: str, context: str, source: str, sizes: Mapping[str, int]
    ) -> None:
        """Logs all of it in one line."""
        logger.log(self._level, "%s data: %s, digest %s, %s", context, name, digest, _listed(sizes))

    def rewind(self, step: int) -> None:
        """Logs the step."""
        logger.log(self._level, "run %s: goes on from step %d", self._name, step)

    def close(self, status: RunStatus, seconds: float | None = None) -> None:
        """Logs the status."""
        if not self._closed:
            logger.log(self._level, "run %s: %s", self._name, status.value)
        self._closed = True

    def location(self) -> str:
        """Returns words that say so."""
        return "only in the log: tracking is off"


class LoggingStore(RunStore):
    """Opens runs that are only logged, and finds none.

    Args:
      level: the level of the log lines.
    """

    def __init__(self, level: int = logging.INFO) -> None:
        self._level = level

    def connect(self) -> None:
        """Does nothing: there is no store to reach."""

    def open(
        self,
        directory: Path,
        experiment: str,
        run_name: str,
        tags: Mapping[str, str],
        parent: str | None = None,
        ended: RunStatus | None = None,
    ) -> Tracker:
        """Returns a tracker that writes to the log."""
        tracker = LoggingTracker(run_name, self._level)
        logger.log(self._level, "run %s of %s", run_name, experiment)
        tracker.set_tags(tags)
        return tracker

    def run_id(self, directory: Path) -> str | None:
        """Returns None: nothing is stored."""
        return None

    def finished(self, experiment: str, tags: Mapping[str, str]) -> list[TrackedRun]:
        """Returns an empty list: nothing is stored."""
        return []

    def recorded(self, directory: Path) -> bool:
        """Returns False: nothing is stored."""
        return False

    def keep_model(
        self,
        directory: Path,
        model: ExportedModel,
        register: str | None = None,
        alias: str | None = None,
    ) -> None:
        """Does nothing: nothing is stored."""

    def settle(self, directory: Path) -> None:
        """Does nothing: nothing is stored."""

    @property
    def store(self) -> str:
        """Returns an empty string: there is no store."""
        return ""

    def pin(self, uri: str) -> str:
        """Raises TrackingError: nothing is stored."""
        raise no_artifacts(uri)

    def download(self, uri: str, folder: str) -> str:
        """Raises TrackingError: nothing is stored."""
        raise no_artifacts(uri)

    def open_command(self) -> str:
        """Returns an empty string: there is nothing to open."""
        return ""


def no_artifacts(uri: str) -> TrackingError:
    """Returns the error for an artifact that is asked of no store."""
    return TrackingError(
        Problem(
            f"{uri} is in MLflow, and tracking is off",
            "tracking.uri is null, so there is no store to ask for it",
            "set tracking.uri to the store that has it, or name a path",
        )
    )


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name}={f'{value:.6g}' if isinstance(value, float) else value}"
        for name, value in values.items()
    )
