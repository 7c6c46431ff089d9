"""What a run records of itself, and where: a journal, MLflow and TensorBoard, or the log alone."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.masking import Mask, flatten
from runner.config.schema import TrackingConfig
from runner.tracking.follower_process import FollowerProcess, shared_follower
from runner.tracking.journal_tracker import JournalStore, mlflow_uri
from runner.tracking.no_tracker import LoggingStore, LoggingTracker
from runner.tracking.source_control import environment_tags
from runner.tracking.tracker import RUN_DIR_TAG, RunStatus, RunStore, TrackedRun, Tracker

__all__ = [
    "RUN_DIR_TAG",
    "FollowerProcess",
    "LoggingStore",
    "LoggingTracker",
    "Mask",
    "RunStatus",
    "RunStore",
    "TrackedRun",
    "Tracker",
    "environment_tags",
    "flatten",
    "is_tracked",
    "mlflow_uri",
    "open_store",
    "shared_follower",
]


def is_tracked(config: TrackingConfig) -> bool:
    """Whether the configuration names any store."""
    return config.tensorboard or mlflow_uri(config) is not None


def open_store(
    config: TrackingConfig,
    settings: Mapping[str, object],
    follower: FollowerProcess | None = None,
    mask: Mask | None = None,
) -> RunStore:
    """Returns the stores that a configuration names; nothing is contacted yet.

    Args:
      config: where runs are recorded, and how.
      settings: the whole configuration, nested, in which secrets are looked for.
      follower: a follower process that has been started ahead.
      mask: knows the secrets, also those of other configurations; by default, only these.

    Raises:
      TrackingUriError: the URI is malformed, or of a kind that MLflow does not offer.
      ConfigError: a pattern of secrets is malformed.
    """
    if not is_tracked(config):
        return LoggingStore()
    return JournalStore(config, mask or Mask(config.mask, settings), follower)
