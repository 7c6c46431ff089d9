"""The run in the tracking store that the runs of a sweep are parts of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from runner.config import RunConfig
from runner.tracking import RunStatus, Tracker, environment_tags, open_store


def open_parent(
    directory: Path, config: RunConfig, name: str | None, overrides: Sequence[str]
) -> Tracker:
    """Opens the parent run of a sweep, the one recorded from its directory before if there is one.

    Trials, also those in other processes, name this directory as their parent.

    Args:
      directory: the sweep's.
      config: of one of the trials, for where runs are recorded.
      name: the experiment that is swept; None for a sweep over experiments.
      overrides: the command line's.

    Raises:
      TrackingError: another process records from this directory.
    """
    tags = {"runner.overrides": " ".join(overrides), **environment_tags(Path.cwd())}
    store = open_store(config.tracking, asdict(config))
    store.connect()
    run_name = f"{name} sweep" if name is not None else "sweep"
    return store.open(directory, name or "sweep", run_name, tags)


def close_parent(tracker: Tracker, status: RunStatus, tags: Mapping[str, str]) -> None:
    """Sets the last tags and closes the run."""
    tracker.set_tags(tags)
    tracker.close(status)
