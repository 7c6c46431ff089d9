"""Which run of a folder is resumed or extended, and which is nearest to a configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock

from runner.config.fingerprint import fingerprint
from runner.errors import Problem, RunDirectoryError
from runner.runs.run_directory import RunDirectory, RunRecord, runs
from runner.system.atomic_files import make_container, next_numbered_folder
from runner.system.status import Status

_WARM_START = ("scaffolds", "restoration")
# What `auto` and `must` never resume.
_ENDED = (Status.FINISHED, Status.PRUNED)
_STEPS = "train.steps"
# What distinguishes two configurations whose records look alike.
_UNSEEN = "another secret, or the same values in another order, and that of scaffolds counts"


class Opening(Enum):
    """How a run is opened: a new one, an interrupted one as it was, or one for more steps."""

    new = "new"
    resumed = "resumed"
    extended = "extended"


@dataclass(frozen=True)
class ClaimedDirectory:
    """The directory of a run that this process owns.

    Attributes:
      directory: the run directory.
      opening: how the run was opened.
      former: the run's record before that; None for a new run.
    """

    directory: RunDirectory
    opening: Opening
    former: RunRecord | None = None


def interrupted_run(
    container: Path,
    record: RunRecord,
    resume: str,
    *,
    run_dir_is_explicit: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> RunDirectory | None:
    """Returns the run that is to be resumed, or None when a new one is to be started.

    A trial of a sweep resumes only its own run; another trial may have the same configuration.
    Changes nothing.

    Args:
      container: the configured `run_dir`.
      record: the record a new run starts with.
      resume: `auto` resumes an interrupted run of the same configuration, if there is one; `must`
        only resumes, trials of a sweep excepted that have not started yet; `never` only starts;
        `extend` continues the run that came furthest, finished or not, of those of the same
        configuration but for a smaller `train.steps`.
      run_dir_is_explicit: whether the user named `container` for this run; with `auto`, an
        interrupted run in it that has another warm start is then an error.
      settings: those of `record` with their secrets, for `extend`; by default there are none.

    Raises:
      RunDirectoryError: when `must` or `extend` finds no such run, `container` is itself a run
        that is not to be resumed, or an explicit one holds a run of another warm start.
    """
    if resume == "extend":
        found = _extendable(container, record, settings or record.settings)
        return found[0][0] if found else _refuse_to_extend(container, record)
    for directory, each in runs(container) if resume != "never" else ():
        if _is_interrupted(each, record) and record.trial in ("", each.trial):
            return directory
    if resume == "must" and not record.trial:
        raise RunDirectoryError(_nothing_to_resume(container, record))
    own = RunDirectory(container).read() is not None
    if resume == "auto" and (run_dir_is_explicit or own):
        _refuse_other_warm_start(container, record)
    if own:
        cause = "it is finished or has another configuration, and a run is never overwritten"
        remedy = "give run_dir=... another folder; a new run is made inside it"
        state = f"{container} is a run of its own, and not one to resume"
        raise RunDirectoryError(Problem(state, cause, remedy))
    return None


def open_run(
    container: Path,
    record: RunRecord,
    resume: str,
    *,
    run_dir_is_explicit: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> ClaimedDirectory:
    """Claims the directory of the run to resume, or a new, numbered one in `container`.

    A run that is extended takes the record's fingerprint and settings, in one atomic write with its
    status: whatever ends it from then on, it is an interrupted run of the new configuration.

    The arguments and errors are those of `interrupted_run`.

    Raises:
      RunDirectoryError: also when a living process owns the run to resume, or `container` cannot be
        made.
    """
    make_container(container, "run_dir")
    with FileLock(container / ".lock"):
        directory = interrupted_run(
            container, record, resume, run_dir_is_explicit=run_dir_is_explicit, settings=settings
        )
        if directory is not None:
            directory.claim()
            former = directory.load_record()
            if former.fingerprint == record.fingerprint and former.status != Status.FINISHED:
                directory.update(status=Status.RUNNING)
                return ClaimedDirectory(directory, Opening.resumed, former)
            directory.update(
                status=Status.RUNNING,
                fingerprint=record.fingerprint,
                settings=record.settings,
                trained=False,
            )
            return ClaimedDirectory(directory, Opening.extended, former)
        directory = RunDirectory(next_numbered_folder(container))
        directory.claim()
        directory.write(record)
        return ClaimedDirectory(directory, Opening.new)


def discard(directory: RunDirectory, container: Path) -> None:
    """Deletes a run that `open_run` has just made, and releases its directory."""
    with FileLock(container / ".lock"):
        directory.delete()


def skipped_run_notice(
    container: Path, record: RunRecord, settings: Mapping[str, Any] | None = None
) -> list[str]:
    """Returns a line on the run that could be extended, or else on the newest unfinished run.

    The arguments are those of `interrupted_run`. There is no line on an unfinished run of the same
    configuration.
    """
    for directory, found, taken in _extendable(container, record, settings or record.settings):
        if found.fingerprint != record.fingerprint and found.status != Status.RUNNING:
            return [
                f"{directory.path} has taken {taken} steps, and only {_STEPS} differs: "
                "resume=extend continues it"
            ]
    for directory, found in runs(container):
        if found.status in (Status.KILLED, Status.FAILED):
            changes = "; ".join(differences(found.settings, record.settings))
            return [f"{directory.path} is unfinished and left alone: {changes}"] if changes else []
    return []


def _extendable(
    container: Path, record: RunRecord, settings: Mapping[str, Any]
) -> list[tuple[RunDirectory, RunRecord, int]]:
    """Returns the runs that `extend` can continue, with their steps taken, most steps first."""
    found = []
    for directory, each in runs(container):
        taken = _steps_taken(directory)
        shorter = 0 < taken < _steps(settings) and _is_shorter(each, settings)
        if record.trial in ("", each.trial) and (shorter or _is_interrupted(each, record)):
            found.append((directory, each, taken))
    return sorted(found, key=lambda each: -each[2])


def _is_interrupted(found: RunRecord, record: RunRecord) -> bool:
    """Whether a run has the record's configuration and has not ended."""
    return found.fingerprint == record.fingerprint and found.status not in _ENDED


def _is_shorter(found: RunRecord, settings: Mapping[str, Any]) -> bool:
    """Whether a run has the same configuration with a smaller `train.steps`, or a finished one.

    Values of the optimizer that followed `train.steps`, such as a schedule's decay, may too.
    """
    old, new = _steps(found.settings), _steps(settings)
    if found.status == Status.PRUNED or old > new:
        return False
    if old == new and found.status != Status.FINISHED:
        return False
    optimizer = _following(settings["optimizer"], found.settings.get("optimizer"), new, old)
    train = {**settings["train"], "steps": old}
    return fingerprint({**settings, "optimizer": optimizer, "train": train}) == found.fingerprint


def _following(value: Any, found: Any, new: int, old: int) -> Any:
    """Returns nested settings with `old` where they have `new` and `found` has `old`."""
    if isinstance(value, Mapping) and isinstance(found, Mapping):
        return {key: _following(each, found.get(key), new, old) for key, each in value.items()}
    return found if (value, found) == (new, old) else value


def _steps_taken(directory: RunDirectory) -> int:
    """Returns the step of the newest checkpoint; 0 where there is none.

    The `checkpoint` file is not asked: that of a run that only lies beside may be damaged.
    """
    names = (file.stem.rpartition("-")[2] for file in directory.checkpoints.glob("*.index"))
    return max((int(name) for name in names if name.isdecimal()), default=0)


def extension_lines(found: RunRecord, record: RunRecord) -> Iterator[str]:
    """Yields a line on what makes an extended run another than one that took all steps at once.

    Args:
      found: the record of the run before it was extended.
      record: the record of its extension.
    """
    changed = [
        each
        for each in differences(found.settings, record.settings)
        if not each.startswith(f"{_STEPS}: ")
    ]
    if changed:
        yield (
            f"not exactly what {_steps(record.settings)} steps at once would be: "
            f"{'; '.join(changed)} applies only from here on"
        )


def nearest(
    found: Sequence[tuple[RunDirectory, RunRecord]], record: RunRecord
) -> tuple[RunDirectory, RunRecord, list[str]]:
    """Returns the run whose settings differ least from a record's, and how; at least one is given.

    Args:
      found: runs, of which the first is taken where several differ alike.
      record: the record of the configuration.
    """
    compared = [
        (directory, each, differences(each.settings, record.settings)) for directory, each in found
    ]
    return min(compared, key=lambda each: len(each[2]))


def _refuse_to_extend(container: Path, record: RunRecord) -> NoReturn:
    """Explains why no run in `container` can be extended by the record's configuration."""
    state = f"{container} holds no run that resume=extend can continue"
    remedy = "use resume=auto to start a run"
    found = [(d, r) for d, r in runs(container) if r.status != Status.PRUNED]
    if not found:
        raise RunDirectoryError(Problem(state, "it holds no run at all", remedy))
    directory, old, changes = nearest(found, record)
    taken, before, steps = _steps_taken(directory), _steps(old.settings), _steps(record.settings)
    # The values that followed the steps may differ too.
    others = "; ".join(each for each in changes if not each.endswith(f": {before} -> {steps}"))
    if not others and (taken == 0 or taken >= steps or before > steps):
        cause = f"{directory.path} has taken {taken} of {before} steps, and {_STEPS} is {steps}"
        raise RunDirectoryError(Problem(state, cause, f"give a larger {_STEPS}, or {remedy}"))
    cause = f"more than {_STEPS} differs from {directory.path}: {others or _UNSEEN}"
    raise RunDirectoryError(Problem(state, cause, f"repeat its configuration, or {remedy}"))


def _steps(settings: Mapping[str, Any]) -> int:
    steps: int = settings.get("train", {}).get("steps", 0)
    return steps


def _nothing_to_resume(container: Path, record: RunRecord) -> Problem:
    """Explains why no run in `container` can be resumed with the record's configuration."""
    unfinished = [(d, r) for d, r in runs(container) if r.status not in _ENDED]
    if not unfinished:
        return Problem(
            f"{container} holds no interrupted run",
            "resume=must only resumes",
            "use resume=auto to start one",
        )
    directory, found = unfinished[0]
    changes = differences(found.settings, record.settings)
    return Problem(
        f"the interrupted run {directory.path} has another configuration",
        "; ".join(changes) or _UNSEEN,
        "repeat its configuration, or use resume=never to start anew",
    )


def _refuse_other_warm_start(container: Path, record: RunRecord) -> None:
    """Refuses when the newest unfinished run of the experiment has another warm start."""
    for directory, found in runs(container):
        if found.name != record.name or found.status in _ENDED:
            continue
        old, new = (
            {key: each.settings.get(key) for key in _WARM_START} for each in (found, record)
        )
        if json.dumps(old) != json.dumps(new):
            raise RunDirectoryError(
                Problem(
                    f"the warm start has changed since {directory.path} began, which is unfinished",
                    "; ".join(differences(old, new)) or "the scaffolds are in another order",
                    "repeat its configuration to resume it, or start anew with resume=never or "
                    "in another run_dir",
                )
            )
        return


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """Returns `key: old -> new` for each leaf that differs between two nested settings."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(each for each in new if each not in old)]
        prefix = f"{key}." if key else ""
        return [
            line
            for each in keys
            for line in differences(
                old.get(each, "(absent)"), new.get(each, "(absent)"), f"{prefix}{each}"
            )
        ]
    return [] if old == new else [f"{key}: {old} -> {new}"]
