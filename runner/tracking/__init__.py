"""Records runs in MLflow, as event files, or in the run directory alone, and finds them again.

While it trains, a run only appends to a journal on disk and never waits for a store. A separate
process follows the journal and delivers each record once; at its end the run waits for it, for a
limited time. Finding runs and models asks MLflow directly.

- `run_store`: `RunStore`, which opens trackers and finds runs; a `Tracker` appends what one run
  records, with secrets masked, to its journal. `stored_runs`: the types of runs and models
- `journal`: the lines of a journal, and which values of a step that is taken again are new;
  `tracking_directory`: its files, and how far each store has them
- `current_run`: what one's own code records to the run that is being trained
- `store_kinds`: the table of stores; `destination`: the interface of a store; `event_files`:
  TensorBoard's
- `follower_process`: the process beside a run that delivers, started as `__main__`; `delivery`:
  from a run to all of its stores, also by `runner sync`; `follower`: from the journal to one store
- `encoding`: names and values within MLflow's limits
- `address`: tracking URIs, shown without their passwords
- `mlflow_store`, `mlflow_run`, `mlflow_connection`, `mlflow_models`: the only modules that import
  MLflow; `runner.internals.mlflow` has what older versions do otherwise

The entry points are the functions below and the classes of `run_store`. Nothing here knows
TensorFlow's graphs or sessions, or what a run computes.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.masking import Mask
from runner.config.schema import TrackingConfig
from runner.tracking.follower_process import start_follower
from runner.tracking.run_store import RunStore, Tracker
from runner.tracking.store_kinds import configured_uris, mlflow_uri
from runner.tracking.stored_runs import TrackedRun

__all__ = ["RunStore", "TrackedRun", "Tracker", "open_store", "start_delivery"]


def start_delivery(config: TrackingConfig) -> None:
    """Starts the process that delivers what runs record, so that its imports overlap ours."""
    if configured_uris(config):
        start_follower(mlflow_uri(config))


def open_store(
    config: TrackingConfig, settings: Mapping[str, object], mask: Mask | None = None
) -> RunStore:
    """Returns the stores that a configuration names, without contacting them.

    Args:
      config: where runs are recorded, and how.
      settings: the whole configuration, nested, whose secrets are masked.
      mask: masks secrets, of other configurations too; by default the secrets of `settings`.

    Raises:
      TrackingUriError: the URI is malformed, or of a kind that MLflow does not offer.
    """
    return RunStore(config, mask or Mask(config.mask, settings))
