"""The run in the tracking store whose children are the runs of a sweep's trials."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from runner.config.masking import Mask
from runner.config.schema import RunConfig
from runner.runs.provenance import environment_tags, name_tracked_run
from runner.runs.run_directory import RunDirectory, mark_killed_runs
from runner.sweeps.sweep_directory import AttemptFile, SweepDirectory
from runner.system.status import Status
from runner.tracking import Tracker, open_store


class ParentRun:
    """The parent run of a sweep, opened or continued.

    Trials, also in other processes, name the sweep's directory as their parent. Records that a
    sweep which was killed has left undelivered are delivered.

    Args:
      directory: the sweep's.
      config: of one of the trials, for where runs are recorded.
      names: the experiments'; if there are several, the run is called `sweep`.
      overrides: the command's.
      mask: knows the secrets of all trials; by default, only the secrets of `config`.

    Attributes:
      tracker: records the run.

    Raises:
      TrackingError: another process records from the directory.
    """

    def __init__(
        self,
        directory: SweepDirectory,
        config: RunConfig,
        names: Collection[str],
        *,
        overrides: Sequence[str],
        mask: Mask | None = None,
    ) -> None:
        mask = mask or Mask(config.tracking.mask, asdict(config))
        self._directory = directory
        self._store = open_store(config.tracking, asdict(config), mask)
        tags = {
            "runner.overrides": " ".join(mask.overrides(overrides)),
            **environment_tags(Path.cwd()),
        }
        name, run_name = "sweep", "sweep"
        if len(names) == 1:
            (name,) = names
            run_name = f"{name} sweep"
        self.tracker: Tracker = self._store.open(directory.path, name, run_name, tags=tags)
        for run_directory in self._run_directories():
            self._store.deliver_rest(run_directory)

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
        for run_directory in self._run_directories():
            name_tracked_run(RunDirectory(run_directory), self._store)

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
        for path in sorted({path.absolute() for path in killed}):
            self._store.deliver_rest(path)

    def _run_directories(self) -> list[Path]:
        """Returns the run directories of the trials that have ended."""
        attempts = (file.read() for file in self._directory.attempts())
        return list(dict.fromkeys(Path(attempt.run_dir) for attempt in attempts if attempt.run_dir))
