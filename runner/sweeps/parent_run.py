"""The run in the tracking store that the runs of a sweep are parts of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from runner.config import RunConfig
from runner.run_directory import settle_killed_runs
from runner.sweeps.attempt import Attempt, TrialStatus
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


def close_parent(
    tracker: Tracker, status: RunStatus, tags: Mapping[str, str], seconds: float | None = None
) -> None:
    """Sets the last tags and closes the run, in so many seconds at most if that is given."""
    tracker.set_tags(tags)
    tracker.close(status, seconds)


def settle_trials(configs: Sequence[RunConfig], attempts: Sequence[Attempt]) -> None:
    """Says of runs that were killed that they are, also where their own process could not.

    Args:
      configs: of the trials.
      attempts: at the trials, in whatever process.
    """
    containers = {Path(each.run_dir) for each in configs}
    killed = {
        each.path
        for container in containers
        if container.is_dir()
        for each in settle_killed_runs(container)
    }
    # A launcher may have ended with a trial's process also what delivers its records.
    killed |= {
        Path(each.run_dir)
        for each in attempts
        if each.status is TrialStatus.KILLED and each.run_dir is not None
    }
    store = open_store(configs[0].tracking, asdict(configs[0]))
    for path in sorted({each.absolute() for each in killed}):
        store.settle(path)
