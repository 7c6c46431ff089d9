"""What a run records of itself, and where: in MLflow, as event files, or in the log alone.

While it trains, a run only appends to a journal on disk and never waits for a store. A separate
process follows the journal and delivers each record once; at its end the run waits for it, for a
limited time. Finding runs and models asks MLflow directly.

- `tracker`: the base classes `Tracker`, for one run, and `RunStore`, for all. They write to the log
  alone, for `tracking=none`
- `journal_store`: records to the journal, with secrets masked; `journal`: its lines;
  `tracking_directory`: its files
- `follower_process`: the process beside a run that delivers; `delivery`: to all stores of a run,
  also by `python -m runner.sync`; `follower`: from the journal to one store
- `encoding`: names and values within MLflow's limits
- `address`: tracking URIs, shown without their passwords
- `mlflow_store`, `mlflow_run`: the only modules that import MLflow

The doors are the functions below and the classes of `tracker`. Nothing here knows TensorFlow's
graphs or sessions, or what a run does.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.masking import Mask
from runner.config.schema import TrackingConfig
from runner.tracking.follower_process import start_follower
from runner.tracking.journal_store import JournalStore, mlflow_uri
from runner.tracking.tracker import RunStore, TrackedRun, Tracker

__all__ = ["RunStore", "TrackedRun", "Tracker", "is_tracked", "open_store", "start_delivery"]


def is_tracked(config: TrackingConfig) -> bool:
    """Whether the configuration names any store."""
    return config.tensorboard or mlflow_uri(config) is not None


def start_delivery(config: TrackingConfig) -> None:
    """Starts the process that delivers what runs record, so that its imports overlap ours."""
    if is_tracked(config):
        start_follower(mlflow_uri(config))


def open_store(
    config: TrackingConfig, settings: Mapping[str, object], mask: Mask | None = None
) -> RunStore:
    """Returns the stores that a configuration names; none is contacted yet.

    Args:
      config: where runs are recorded, and how.
      settings: the whole configuration, nested, whose secrets are masked.
      mask: masks secrets, also those of other configurations; by default, only these.

    Raises:
      TrackingUriError: the URI is malformed, or of a kind that MLflow does not offer.
    """
    if not is_tracked(config):
        return RunStore()
    return JournalStore(config, mask or Mask(config.mask, settings))
