"""Decides how a run starts: which run of a folder is resumed or extended, or that a new one begins.

`claimed_run` decides; `interrupted_run` tells what it would decide, without changing anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from runner.config.choices import Resume
from runner.errors import InterruptedRunError, RunDirectoryError
from runner.runs.run_directory import RunDirectory, RunRecord, mark_killed_runs, runs
from runner.runs.saved_checkpoints import recover
from runner.system.atomic_files import make_container, next_numbered_folder, unfinished
from runner.system.locks import locked
from runner.system.signals import Interruption
from runner.system.status import Status

# `auto` and `must` never resume runs of these.
_ENDED = (Status.FINISHED, Status.PRUNED)
_STEPS = "train.steps"
# The keys that decide neither the variables of a graph nor its data, with what is below them.
_EXTENDABLE = (
    *(_STEPS, "train.epochs", "train.steps_per_epoch", "train.evaluate_every", "train.clip"),
    *("train.non_finite", "optimizer", "hooks", "callbacks", "metrics", "weighted_metrics"),
)
# The ways in which configurations differ whose records look alike.
_UNSEEN = "another secret, or the scaffolds in another order"


class StartKind(Enum):
    """How a run starts: a new one, an interrupted one as it was, or one for more steps."""

    new = "new"
    resumed = "resumed"
    extended = "extended"


@dataclass(frozen=True)
class ClaimedDirectory:
    """The directory of a run that this process owns.

    Attributes:
      directory: the run directory.
      start: how the run starts.
      former: the run's record before that; None for a new run.
      killed: other runs of the folder that turned out to be killed.
      notice: a line about the run that a new one leaves alone, if there is one.
    """

    directory: RunDirectory
    start: StartKind
    former: RunRecord | None = None
    killed: Sequence[RunDirectory] = ()
    notice: Sequence[str] = ()


@dataclass(frozen=True)
class ResumeCriteria:
    """The criteria by which one run of a folder is resumed, or a new one started.

    A trial of a sweep resumes only its run; other trials may have the same configuration.

    Attributes:
      container: the configured `run_dir`.
      record: the record with which a new run starts.
      resume: `auto` resumes an interrupted run of the same configuration, if there is one; `must`
        only resumes, except for trials of a sweep that have not started yet; `never` only starts;
        `extend` continues a run, finished or not, whose configuration differs at most in keys
        that decide neither variables nor data, such as `train.steps` or the learning rate. Of
        several it takes one with the fewest differences, and of these the one that came furthest.
    """

    container: Path
    record: RunRecord
    resume: Resume

    @property
    def steps(self) -> int:
        """The configured `train.steps`."""
        return _steps(self.record.settings)

    def concerns(self, record: RunRecord) -> bool:
        """Whether a run may be resumed at all: a trial's run only by the same trial."""
        return self.record.trial in ("", record.trial)

    def is_interrupted(self, record: RunRecord) -> bool:
        """Whether a run has this configuration and has not ended."""
        return record.fingerprint == self.record.fingerprint and record.status not in _ENDED


def interrupted_run(criteria: ResumeCriteria) -> RunDirectory | None:
    """Returns the run to resume, or None to start a new one; changes nothing.

    Raises:
      RunDirectoryError: when `must` or `extend` finds no such run, or when the container is
        itself a run that cannot be resumed.
    """
    container, resume = criteria.container, criteria.resume
    if resume is Resume.extend:
        for directory, *_ in _extendable(criteria):
            return directory
        state = f"{container} holds no run that resume=extend can continue"
        remedy = f"repeat a run's configuration with a larger {_STEPS}, or use resume=auto"
        raise no_such_run(container, state, criteria.record, remedy)
    for directory, record in runs(container) if resume is not Resume.never else ():
        if criteria.is_interrupted(record) and criteria.concerns(record):
            return directory
    if resume is Resume.must and not criteria.record.trial:
        state = f"{container} holds no interrupted run of this configuration"
        remedy = "repeat a run's configuration, or use resume=auto to start a run"
        raise no_such_run(container, state, criteria.record, remedy)
    if RunDirectory(container).read() is not None:
        remedy = "give run_dir=... another folder; a new run starts inside it"
        state = f"{container} is itself a run, and not one to resume"
        raise no_such_run(container, state, criteria.record, remedy)
    return None


def claim_run(criteria: ResumeCriteria) -> ClaimedDirectory:
    """Claims the directory of the run to resume, or a new, numbered one in the container.

    An extended run takes the fingerprint and settings of the new record, in one atomic write with
    its status: however it ends, it then is an interrupted run of the new configuration.

    Raises:
      RunDirectoryError: as `interrupted_run`; also when a living process owns the run to resume, or
        the container cannot be created.
    """
    container, record = criteria.container, criteria.record
    make_container(container, "run_dir")
    with locked(container / ".lock", "the folder of runs"):
        directory = interrupted_run(criteria)
        if directory is None:
            directory = RunDirectory(next_numbered_folder(container))
            with unfinished(directory.path) as folder:
                folder.mkdir()
                RunDirectory(folder).write(record)
            directory.claim()
            return ClaimedDirectory(directory, StartKind.new)
        directory.claim()
        former = directory.load_record()
        if former.fingerprint == record.fingerprint and former.status != Status.FINISHED:
            directory.update(status=Status.RUNNING)
            return ClaimedDirectory(directory, StartKind.resumed, former)
        changes = differences(former.settings, record.settings)
        extension = {"step": _steps_taken(directory), "changes": changes}
        directory.update(
            status=Status.RUNNING,
            fingerprint=record.fingerprint,
            settings=record.settings,
            trained=False,
            extensions=[*former.extensions, extension],
        )
        return ClaimedDirectory(directory, StartKind.extended, former)


@contextmanager
def claimed_run(
    criteria: ResumeCriteria, interruption: Interruption, say: Callable[[str], None]
) -> Iterator[ClaimedDirectory]:
    """Claims the directory of the run to resume, with a whole checkpoint, or of a new one.

    Other runs of the folder that are RUNNING though no process owns them are marked KILLED. Where
    the block fails, the directory is released and the run's status recorded. A new run, of which
    nothing else is recorded yet, leaves no directory then.

    Args:
      criteria: the criteria by which a run is resumed.
      interruption: reports signals, from now on as the end of a run that can be resumed; none
        interrupts the recording of the status.
      say: takes a line about each damaged checkpoint.

    Raises:
      RunDirectoryError: as `claim_run`.
      CheckpointError: there are checkpoints, and none is whole.
    """
    claimed = claim_run(criteria)
    directory = claimed.directory
    try:
        killed = mark_killed_runs(criteria.container)
        is_new = claimed.start is StartKind.new and not criteria.record.trial
        notice = skipped_run_notice(criteria) if is_new else ()
        recover(directory, say)
        interruption.promise_resume()
        yield replace(claimed, killed=killed, notice=notice)
    except BaseException as error:
        was_killed = isinstance(error, InterruptedRunError)
        with interruption.deferred():
            if claimed.start is StartKind.new and not directory.config.exists():
                with locked(criteria.container / ".lock", "the folder of runs"):
                    directory.delete()
                raise
            try:
                directory.update(status=Status.KILLED if was_killed else Status.FAILED)
            finally:
                directory.release()
        raise


def skipped_run_notice(criteria: ResumeCriteria) -> list[str]:
    """Returns a line about the run that could be extended, or else the newest unfinished run.

    An unfinished run of the same configuration gets no line.
    """
    for directory, record, taken in _extendable(criteria):
        other = record.fingerprint != criteria.record.fingerprint
        if other and record.status != Status.RUNNING and not _changes(record, criteria):
            return [
                f"{directory.path} has taken {taken} steps, and only {_STEPS} differs: "
                "resume=extend continues it"
            ]
    for directory, record in runs(criteria.container):
        if record.status in (Status.KILLED, Status.FAILED):
            changes = "; ".join(differences(record.settings, criteria.record.settings))
            return [f"{directory.path} is unfinished and left alone: {changes}"] if changes else []
    return []


def _extendable(criteria: ResumeCriteria) -> list[tuple[RunDirectory, RunRecord, int]]:
    """Returns the runs that `extend` can continue, with the steps taken, the best match first."""
    extendable = []
    for directory, record in runs(criteria.container):
        taken = _steps_taken(directory)
        continues = 0 < taken < criteria.steps and _may_continue(record, criteria)
        if criteria.concerns(record) and (continues or criteria.is_interrupted(record)):
            extendable.append((directory, record, taken))
    return sorted(extendable, key=lambda run: (len(_changes(run[1], criteria)), -run[2]))


def _may_continue(record: RunRecord, criteria: ResumeCriteria) -> bool:
    """Whether a run has the same configuration but for keys that an extension may change."""
    new = criteria.record.settings
    return (
        record.status != Status.PRUNED
        and list(record.settings.get("scaffolds", ())) == list(new.get("scaffolds", ()))
        and all(map(_may_change, _leaves_that_differ(record.settings, new)))
    )


def _may_change(key: str) -> bool:
    return key != "optimizer._target_" and any(
        key == root or key.startswith(f"{root}.") for root in _EXTENDABLE
    )


def _changes(former: RunRecord, criteria: ResumeCriteria) -> list[str]:
    """Returns the differences from a former record but the number of steps and what follows it."""
    steps = f": {_steps(former.settings)} -> {criteria.steps}"
    listed = differences(former.settings, criteria.record.settings)
    return [change for change in listed if not change.endswith(steps)]


def _steps(settings: Mapping[str, Any]) -> int:
    steps: int = settings.get("train", {}).get("steps", 0)
    return steps


def _steps_taken(directory: RunDirectory) -> int:
    """Returns the step of the newest checkpoint; 0 without one.

    Reads file names, as the `checkpoint` file of a run that is not to be resumed may be damaged.
    """
    names = (file.stem.rpartition("-")[2] for file in directory.checkpoints.glob("*.index"))
    return max((int(name) for name in names if name.isdecimal()), default=0)


def no_such_run(container: Path, state: str, record: RunRecord, remedy: str) -> RunDirectoryError:
    """Returns the error that no run of a folder fits a configuration; it describes the nearest.

    Args:
      container: the folder of runs, or a run.
      state: the state of the problem.
      record: the record of the configuration.
      remedy: the remedy of the problem.
    """
    compared = [
        (directory, former, differences(former.settings, record.settings))
        for directory, former in runs(container)
    ]
    if not compared:
        return RunDirectoryError.of(state, "it holds no run at all", remedy)
    directory, former, changes = min(compared, key=lambda run: len(run[2]))
    if former.fingerprint != record.fingerprint:
        changes = changes or [_UNSEEN]
    cause = f"{directory.path} is {former.status} after {_steps_taken(directory)} steps"
    cause += f" and differs: {'; '.join(changes)}" if changes else ""
    return RunDirectoryError.of(state, cause, remedy)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns `key: old -> new` for each leaf that differs between two nested settings."""
    pairs = _leaves_that_differ(old, new).items()
    return [f"{key}: {before} -> {after}" for key, (before, after) in pairs]


def _leaves_that_differ(old: Any, new: Any, key: str = "") -> dict[str, tuple[Any, Any]]:
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return {} if old == new else {key: (old, new)}
    absent, prefix = "(absent)", f"{key}." * bool(key)
    leaves: dict[str, tuple[Any, Any]] = {}
    for name in dict.fromkeys((*old, *new)):
        values = old.get(name, absent), new.get(name, absent)
        leaves |= _leaves_that_differ(*values, prefix + name)
    return leaves
