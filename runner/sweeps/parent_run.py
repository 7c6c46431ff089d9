"""The run in the tracking store whose children are the runs of a sweep's trials."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from runner.config.masking import Mask
from runner.config.schema import RunConfig
from runner.runs.provenance import environment_tags, name_tracked_run
from runner.runs.run_directory import RunDirectory, mark_killed_runs
from runner.sweeps.points import ComposedPoint
from runner.sweeps.sweep_directory import FAILURES, Attempt, AttemptFile, SweepDirectory
from runner.system.status import Status
from runner.tracking import Tracker, is_tracked, open_store
from runner.training.watch import SWEEP_TAG

_UNOPENED = "unopened"


class ParentRun:
    """The parent run of a sweep.

    Trials, also in other processes, name the sweep's directory as their parent.

    Args:
      directory: the sweep's.
      config: of one of the trials, for where runs are recorded.
      mask: knows the secrets of all trials; by default, only the secrets of `config`.

    Attributes:
      tracker: records the run.
    """

    tracker: Tracker

    def __init__(self, directory: SweepDirectory, config: RunConfig, mask: Mask | None = None):
        self._directory, self._config = directory, config
        self._mask = mask or Mask(config.tracking.mask, asdict(config))

    def open(self, names: Collection[str], overrides: Sequence[str]) -> None:
        """Opens the run, or continues a run that was recorded from the sweep's directory before.

        Delivers records that a sweep which was killed has left undelivered.

        `names` are the experiments'; if there are several, the run is called `sweep`.

        Raises:
          TrackingError: another process records from the directory.
        """
        tracking = self._config.tracking
        shown = " ".join(self._mask.overrides(overrides))
        tags = {"runner.overrides": shown, **environment_tags(Path.cwd())}
        store = open_store(tracking, asdict(self._config), self._mask)
        name, run_name = "sweep", "sweep"
        if len(names) == 1:
            (name,) = names
            run_name = f"{name} sweep"
        self.tracker = store.open(self._directory.path, name, run_name, tags=tags)
        for run_directory in (*self._run_directories(), *self.unopened()):
            store.deliver_rest(run_directory)

    def close(
        self,
        status: Status,
        tags: Mapping[str, str],
        remaining: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Sets the last tags and closes the run, once its trials are delivered.

        Adds the store's names of the trials to provenances that lack them.

        `remaining` returns how many seconds a signal leaves for that; None without a signal.
        """
        self.tracker.set_tags(tags)
        self.tracker.close(status, remaining)
        store = open_store(self._config.tracking, asdict(self._config))
        for run_directory in self._run_directories():
            name_tracked_run(RunDirectory(run_directory), store)

    def mark_killed_trials(self, configs: Sequence[RunConfig]) -> None:
        """Marks the runs whose processes were killed, and delivers the rest of their records."""
        containers = {Path(config.run_dir) for config in configs}
        killed = {
            run.path
            for container in containers
            if container.is_dir()
            for run in mark_killed_runs(container)
        }
        # With a trial's process, a launcher may also have ended the follower that delivers for it.
        killed |= {
            Path(attempt.run_dir)
            for attempt in map(AttemptFile.read, self._directory.attempts())
            if attempt.status is Status.KILLED and attempt.run_dir is not None
        }
        store = open_store(self._config.tracking, asdict(self._config))
        for path in sorted({path.absolute() for path in killed}):
            store.deliver_rest(path)

    def record_unopened(self, composed: Sequence[ComposedPoint]) -> None:
        """Records a run for each trial that failed before it could open one itself.

        When the sweep is resumed and the trial fails again, it continues this run.
        """
        configs = {trial.fingerprint: trial.config for trial in composed}
        attempts = map(AttemptFile.read, self._directory.attempts())
        last = {
            attempt.trial: attempt for attempt in attempts if attempt.status is not Status.SKIPPED
        }
        for attempt in last.values():
            config = configs.get(attempt.fingerprint, composed[0].config)
            failed = attempt.status in FAILURES and attempt.run_dir is None
            if failed and is_tracked(config.tracking):
                self._record(attempt, config)

    def unopened(self) -> list[Path]:
        """Returns the folders of the runs that `record_unopened` has recorded."""
        folders = (self._directory.path / _UNOPENED).glob("*")
        return sorted(folder for folder in folders if folder.is_dir())

    def _record(self, attempt: Attempt, config: RunConfig) -> None:
        folder = self._directory.path / _UNOPENED / f"{attempt.trial:04d}"
        settings = asdict(config)
        mask = Mask(config.tracking.mask, settings)
        store = open_store(config.tracking, settings)
        tracker = store.open(
            folder,
            config.name,
            f"{config.name} trial {attempt.trial}",
            tags={"runner.overrides": " ".join(mask.overrides(attempt.overrides))},
            parent=str(self._directory.path),
        )
        values = {key: str(mask.value(key, value)) for key, value in attempt.values.items()}
        tracker.set_tags(
            {
                **{f"{SWEEP_TAG}.{key}": value for key, value in values.items()},
                "runner.exception": attempt.message,
            }
        )
        tracker.close(attempt.status)

    def _run_directories(self) -> list[Path]:
        """Returns the run directories of the trials that have ended."""
        attempts = (file.read() for file in self._directory.attempts())
        return list(dict.fromkeys(Path(attempt.run_dir) for attempt in attempts if attempt.run_dir))
