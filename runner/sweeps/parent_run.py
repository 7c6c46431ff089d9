"""The run in the tracking store that the runs of a sweep are parts of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from runner.config.masking import Mask
from runner.config.schema import RunConfig
from runner.runs.lineage import name_tracked_run
from runner.runs.provenance import environment_tags
from runner.runs.run_directory import RunDirectory, settle_killed_runs
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.sweep_directory import SweepDirectory
from runner.sweeps.unopened_runs import unopened_runs
from runner.system.status import Status
from runner.tracking import Tracker, open_store


def open_parent(
    directory: Path,
    config: RunConfig,
    name: str | None,
    overrides: Sequence[str],
    mask: Mask | None = None,
) -> Tracker:
    """Opens the parent run of a sweep, the one recorded from its directory before if there is one.

    Trials, also those in other processes, name this directory as their parent. What ended ones
    have recorded, and a sweep that was killed has not seen delivered, is delivered too.

    Args:
      directory: the sweep's.
      config: of one of the trials, for where runs are recorded.
      name: the experiment that is swept; None for a sweep over experiments.
      overrides: the command line's.
      mask: knows the secrets of all trials; by default, those of `config`.

    Raises:
      TrackingError: another process records from this directory.
    """
    tracking = config.tracking
    mask = mask or Mask(tracking.mask, asdict(config))
    shown = " ".join(mask.overrides(overrides))
    tags = {"runner.overrides": shown, **environment_tags(Path.cwd())}
    store = open_store(tracking, asdict(config), mask)
    run_name = f"{name} sweep" if name is not None else "sweep"
    tracker = store.open(directory, name or "sweep", run_name, tags)
    for run_directory in (*_ended(directory), *unopened_runs(directory)):
        store.settle(run_directory)
    return tracker


def close_parent(
    tracker: Tracker, status: Status, tags: Mapping[str, str], seconds: float | None = None
) -> None:
    """Sets the last tags and closes the run, once its trials are delivered.

    In so many seconds at most if that is given.
    """
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


def name_trials(directory: Path, config: RunConfig) -> None:
    """Adds the store's names of the trials to their provenance, where they ended without."""
    store = open_store(config.tracking, asdict(config))
    for run_directory in _ended(directory):
        name_tracked_run(RunDirectory(run_directory), store)


def _ended(directory: Path) -> list[Path]:
    """Returns the run directories of the trials of a sweep that have ended."""
    attempts = [file.read() for file in SweepDirectory(directory).attempts()]
    return list(dict.fromkeys(Path(each.run_dir) for each in attempts if each.run_dir))
