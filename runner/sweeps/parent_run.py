"""The run in the tracking store that the runs of a sweep are parts of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from runner.config import Mode, RunConfig
from runner.tracking import (
    FollowerProcess,
    RunStatus,
    Tracker,
    environment_tags,
    is_tracked,
    mlflow_uri,
    open_store,
)


def start_follower(config: RunConfig) -> FollowerProcess | None:
    """Starts what will deliver the parent run, so that its imports overlap those of this process.

    Args:
      config: of one of the trials.
    """
    if config.mode is not Mode.train or not is_tracked(config.tracking):
        return None
    follower = FollowerProcess()
    follower.start(mlflow_uri(config.tracking))
    return follower


def open_parent(
    directory: Path,
    config: RunConfig,
    name: str | None,
    overrides: Sequence[str],
    follower: FollowerProcess | None = None,
) -> Tracker:
    """Opens the parent run of a sweep, the one recorded from its directory before if there is one.

    Trials, also those in other processes, name this directory as their parent.

    Args:
      directory: the sweep's.
      config: of one of the trials, for where runs are recorded.
      name: the experiment that is swept; None for a sweep over experiments.
      overrides: the command line's.
      follower: a process started ahead.

    Raises:
      TrackingError: another process records from this directory.
    """
    tags = {"runner.overrides": " ".join(overrides), **environment_tags(Path.cwd())}
    store = open_store(config.tracking, asdict(config), follower)
    store.connect()
    run_name = f"{name} sweep" if name is not None else "sweep"
    return store.open(directory, name or "sweep", run_name, tags)


def close_parent(tracker: Tracker, status: RunStatus, tags: Mapping[str, str]) -> None:
    """Sets the last tags and closes the run."""
    tracker.set_tags(tags)
    tracker.close(status)
