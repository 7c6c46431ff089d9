"""What a run records of itself, and where: MLflow, or the log alone."""

from __future__ import annotations

from runner.tracking.flatten import flatten
from runner.tracking.no_tracker import LoggingStore, LoggingTracker
from runner.tracking.source_control import environment_tags
from runner.tracking.tracker import (
    PARENT_RUN,
    RUN_DIR_TAG,
    RunStatus,
    RunStore,
    TrackedRun,
    Tracker,
)

__all__ = [
    "PARENT_RUN",
    "RUN_DIR_TAG",
    "LoggingStore",
    "LoggingTracker",
    "RunStatus",
    "RunStore",
    "TrackedRun",
    "Tracker",
    "environment_tags",
    "flatten",
    "open_store",
]


def open_store(uri: str | None, drain_seconds: float = 30.0) -> RunStore:
    """Returns the store that a tracking URI names; nothing is contacted yet.

    Args:
      uri: an MLflow tracking URI, such as `sqlite:///mlflow.db` or `http://localhost:5000`;
        None or `none` turns tracking off.
      drain_seconds: how long a tracker's `close` delivers what is left before it gives up.

    Raises:
      TrackingUriError: the URI is malformed, or of a kind that MLflow does not offer.
    """
    if uri is None or uri.lower() == "none":
        return LoggingStore()
    # Importing MLflow takes seconds, which a run without tracking does not owe.
    from runner.tracking.mlflow_tracker import MlflowStore

    return MlflowStore(uri, drain_seconds=drain_seconds)
