"""The run directory: its files, the record of the run's status, and the lock of its owner."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from runner.checkpoints.contents import BEST, BEST_RECORD, CHECKPOINTS, RUN_RECORD, runs_in
from runner.config.choices import Mode
from runner.config.masking import Mask
from runner.config.schema import RunConfig
from runner.errors import ConfigError, Problem, RunDirectoryError, RunInUseError
from runner.system.atomic_files import numbered_folders, write_text
from runner.system.locks import OwnerFile, locked
from runner.system.run_format import FORMAT, require_format
from runner.system.status import Status

PROVENANCE = "provenance.json"

_T = TypeVar("_T")

# TensorFlow reads them in a path as in a shell.
_PATTERNS = frozenset("*?[\\")


@dataclass(frozen=True)
class RunRecord:
    """The content of `run.json`, besides the number of its format.

    Attributes:
      name: the experiment.
      fingerprint: the fingerprint of its configuration, see `runner.config.fingerprint`.
      status: how far the run came; a run that is RUNNING while its lock is free was killed.
      settings: the configuration as the fingerprint takes it, secrets masked.
      objective: the best value of the objective; None before the run has ended.
      sources: scaffold name -> the checkpoint that it started from.
      trial: the trial of a sweep that this run is; empty outside sweeps.
      trained: whether training is complete and a cluster's chief has only to close the record.
      start: a line about each source of its initial values.
      extensions: the `step` and the `changes` of each extension by `resume=extend`.
      input_failed: whether reading the training data raised an error. TensorFlow reads ahead, so
        that the positions in checkpoints may hold it.
    """

    name: str
    fingerprint: str
    status: Status
    settings: Mapping[str, Any]
    objective: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    trial: str = ""
    trained: bool = False
    start: str = ""
    extensions: Sequence[Mapping[str, Any]] = field(default_factory=list)
    input_failed: bool = False


class RunDirectory:
    """The folder of one run.

    Attributes:
      path: the folder.
      checkpoints: the newest checkpoints.
      best: the checkpoint with the best objective.
      best_record: the step and the evaluation of the best checkpoint.
      evaluation_due: the step whose evaluation a signal cut short; usually absent.
      config: the composed configuration.
      overrides: the overrides of the command line.
      plan: the restoration plan as text.
      plan_json: the restoration plan as JSON.
      plan_html: the restoration plan as an HTML page.
      export: the SavedModel.
      provenances: the provenance, in the run directory and beside its checkpoints.

    Raises:
      RunInUseError: from `claim`, when a living process owns it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / CHECKPOINTS
        self.best = path / BEST
        self.best_record = self.best / BEST_RECORD
        self.evaluation_due = path / "evaluation_due.json"
        self.config = path / "config.yaml"
        self.overrides = path / "overrides.yaml"
        self.plan = path / "plan.txt"
        self.plan_json = path / "plan.json"
        self.plan_html = path / "plan.html"
        self.export = path / "export"
        folders = (path, self.checkpoints, self.best)
        self.provenances = tuple(folder / PROVENANCE for folder in folders)
        self._lock = FileLock(path / "lock")
        self._owner = OwnerFile(path / "owner.json")

    def best_evaluation(self) -> tuple[int, dict[str, float]] | None:
        """Returns the step and the metrics of the best checkpoint; None before an evaluation."""
        if not self.best_record.is_file():
            return None
        content = json.loads(self.best_record.read_text())
        return content["step"], dict(content["metrics"])

    def claim(self) -> None:
        """Takes the lock for the life of this process, or until `release`."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise self._in_use(str(self._owner.read() or "unknown")) from error
        # On some file systems locks do not reach other hosts.
        elsewhere = self._owner.elsewhere(wait=True)
        if elsewhere is not None:
            self._lock.release()
            raise self._in_use(str(elsewhere))
        self._owner.take()

    def release(self) -> None:
        """Releases the lock."""
        self._owner.release()
        self._lock.release()

    def delete(self) -> None:
        """Deletes the run, which this process owns, and releases the lock."""
        self._owner.release()
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()

    def wait(self) -> None:
        """Waits until no process owns the run."""
        with self._lock:
            pass

    def mark_killed(self) -> bool:
        """Marks the run KILLED if it is RUNNING but unowned; returns whether that was so."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        try:
            record = self.read()
            running = record is not None and record.status == Status.RUNNING
            killed = running and self._owner.elsewhere(wait=False) is None
            if killed:
                self.update(status=Status.KILLED)
            return killed
        finally:
            self._lock.release()

    def read(self) -> RunRecord | None:
        """Returns the run's record, or None when the folder holds none.

        Raises:
          RunDirectoryError: when the record is damaged, or of another format.
        """
        record = self.path / RUN_RECORD
        if not record.is_file():
            return None
        try:
            content = dict(json.loads(record.read_text()))
            require_format(content, record)
            del content["format"]
            return RunRecord(**{**content, "status": Status(content["status"])})
        except (ValueError, TypeError, KeyError) as error:
            raise RunDirectoryError.of(
                f"{record} cannot be read",
                f"it was edited: {error}",
                "move the run away, or give run_dir=... another folder",
            ) from error

    def load_record(self) -> RunRecord:
        """Returns the run's record.

        Raises:
          FileNotFoundError: when the folder holds none.
        """
        record = self.read()
        if record is None:
            raise FileNotFoundError(self.path / RUN_RECORD)
        return record

    def named_record(
        self, state: str = "", remedy: str = "name a run, as in runs/NAME/001"
    ) -> RunRecord:
        """Returns the record of a run that a command names; `state` says where it does.

        Raises:
          RunDirectoryError: when the folder is no run; it lists the runs near it.
        """
        record = self.read()
        if record is None:
            near = self.path if self.path.is_dir() else self.path.parent
            raise RunDirectoryError.of(
                state or f"{self.path} is not a run",
                "it has no run.json" if self.path.exists() else "it does not exist",
                remedy,
                runs_in(str(near)) if near.is_dir() else (),
            )
        return record

    def write(self, record: RunRecord) -> None:
        """Replaces the run's record in an atomic write."""
        # Unsorted: the order of the scaffolds counts.
        content = {"format": FORMAT, **asdict(record)}
        write_text(self.path / RUN_RECORD, json.dumps(content, indent=2))

    def update(self, **changes: Any) -> None:
        """Changes fields of the run's record."""
        self.write(replace(self.load_record(), **changes))

    def has_checkpoint(self) -> bool:
        """Whether the run has saved a checkpoint that it can resume from."""
        # TensorFlow writes this file last, and finds checkpoints by it alone.
        return (self.checkpoints / "checkpoint").is_file()

    def _in_use(self, owner: str) -> RunInUseError:
        problem = Problem(
            f"{self.path} is in use",
            f"another process owns it: {owner}",
            "wait for it or end it; resume=never starts another run beside it",
        )
        return RunInUseError(problem, self.path)


def usable_container(config: RunConfig, mask: Mask) -> Path:
    """Returns `run_dir` as a path in which TensorFlow finds checkpoints.

    Raises:
      ConfigError: when TensorFlow would find none there, or it holds a secret.
    """
    run_dir, state = Path(config.run_dir), f"run_dir is {mask.text(config.run_dir)!r}"
    remedy = "give it another name, for example run_dir=runs/my_experiment"
    if mask.is_in(config.run_dir):
        cause = "it holds a secret, and the name of a folder cannot be masked"
        raise ConfigError.of(state, cause, remedy)
    if run_dir.is_relative_to(Path.cwd()) and _PATTERNS & set(config.run_dir):
        # The project's folder may have any name: from here, the path does not contain it.
        run_dir = run_dir.relative_to(Path.cwd())
    if _PATTERNS & set(str(run_dir)):
        cause = (
            "TensorFlow takes *, ?, [ and \\ in a path for a pattern, and finds no checkpoint there"
        )
        if config.mode is not Mode.train and not _PATTERNS & set(run_dir.name):
            folder = shlex.quote(str(run_dir.parent))
            remedy = f"begin where the path has none: cd {folder}, and run_dir={run_dir.name}"
        raise ConfigError.of(state, cause, remedy)
    return run_dir


def runs(container: Path) -> list[tuple[RunDirectory, RunRecord]]:
    """Returns the runs in `container`, newest first; or the run that `container` itself is."""
    record = RunDirectory(container).read()
    if record is not None:
        return [(RunDirectory(container), record)]
    directories = map(RunDirectory, numbered_folders(container))
    return [
        (directory, record) for directory in directories if (record := directory.read()) is not None
    ]


def when_free(train: Callable[[], _T], say: Callable[[str], object]) -> _T:
    """Calls `train`, again after a wait whenever another process owns the run that it needs."""
    while True:
        try:
            return train()
        except RunInUseError as error:
            say(f"{error.path} is in use; waiting for it")
            RunDirectory(error.path).wait()


def mark_killed_runs(container: Path) -> list[RunDirectory]:
    """Marks as KILLED the runs that are RUNNING though no process owns them, and returns them.

    A process that is killed outright cannot do so itself.
    """
    with locked(container / ".lock", "the folder of runs"):
        return [
            directory
            for directory, record in runs(container)
            if record.status == Status.RUNNING and directory.mark_killed()
        ]
