"""The directory of one sweep: what identifies it, and a file for each attempt at a trial.

The file of an attempt is the record of what happened to it, in a grid and in a search alike. The
process that runs the attempt writes it, the sweep reads it, and it outlives both. A search's study
in Optuna is what the sampler and other processes know of the trials, and is brought up to date
from these files.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from runner.config.choices import Resume
from runner.errors import Problem, RunDirectoryError, RunInUseError
from runner.system.atomic_files import (
    make_container,
    next_numbered_folder,
    numbered_folders,
    relative_path,
    resolve_moved,
    write_json,
)
from runner.system.locks import is_held, locked, this_process
from runner.system.run_format import FORMAT, require_format
from runner.system.status import Status

FAILURES = (Status.FAILED, Status.KILLED)
DIED = "its process was killed"
"""Begins the message of an attempt whose process could not record an error."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at a trial.

    Attributes:
      trial: number of the trial in its sweep, from 0.
      number: number of the attempt at the trial, from 1.
      overrides: all overrides of the trial.
      values: swept key -> value.
      fingerprint: of the trial's configuration; empty in a search.
      metric: the name of `train.objective`.
      last: whether no retry follows a failure.
      sweeper: name of the process that sweeps.
      process: name of the process that runs the attempt; empty before it starts.
      status: how far it got.
      objective: `train.objective`; None without an evaluation.
      metrics: of the evaluation with the best objective.
      curve: step and value of `train.objective`, for each evaluation of the run.
      message: why it failed.
      exit_code: the exit code that its error alone would have had.
      run_dir: the run directory; None before there is one.
      over: recorded as killed; never relaunched.
      study: the name of the study that decides whether it is pruned; None for no pruning.
      device_sets: the sets of devices one of which its process takes; empty where it takes none.
      devices: the set that its process has taken, as CUDA_VISIBLE_DEVICES names it.
    """

    trial: int
    _: KW_ONLY
    number: int = 1
    overrides: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    metric: str = ""
    last: bool = True
    sweeper: str = ""
    process: str = ""
    status: Status = Status.WAITING
    objective: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[tuple[int, float], ...] = ()
    message: str = ""
    exit_code: int = 1
    run_dir: str | None = None
    over: bool = False
    study: str | None = None
    device_sets: tuple[str, ...] = ()
    devices: str = ""

    def __str__(self) -> str:
        values = " ".join(f"{key}={value}" for key, value in self.values.items())
        return f"trial {self.trial} {values}".rstrip()


class AttemptFile:
    """The file of one attempt, `trials/NUMBER.json`, and the lock that its process holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = FileLock(path.with_suffix(".lock"))
        self._cancellation = path.with_suffix(".order")

    def read(self) -> Attempt:
        """Returns the attempt."""
        content: dict[str, Any] = json.loads(self.path.read_text())
        relative = content.pop("run_from_here")
        content["run_dir"] = resolve_moved(content["run_dir"], relative, self.path.parent)
        content["overrides"] = tuple(content["overrides"])
        content["values"] = dict(content["values"])
        content["curve"] = tuple((step, value) for step, value in content["curve"])
        content["device_sets"] = tuple(content["device_sets"])
        content["status"] = Status(content["status"])
        return Attempt(**content)

    def write(self, attempt: Attempt) -> None:
        """Writes the attempt atomically."""
        # As pairs: the keys of a mapping would be sorted.
        values = list(attempt.values.items())
        relative = relative_path(attempt.run_dir, self.path.parent)
        write_json(self.path, asdict(attempt) | {"values": values, "run_from_here": relative})

    def update(self, **changes: Any) -> Attempt:
        """Changes some attributes and returns the attempt."""
        attempt = replace(self.read(), **changes)
        self.write(attempt)
        return attempt

    def cancel(self) -> None:
        """Asks the attempt's process, on whatever host, to end it or never to start it."""
        self._cancellation.write_text("end")

    def cancelled(self) -> bool:
        """Whether `cancel` has been called in any process."""
        # On a network file system, only a file that exists already and is opened shows another
        # host's write soon.
        with self._cancellation.open("a+") as file:
            file.seek(0)
            return file.read() != ""

    def runs_elsewhere(self) -> bool:
        """Whether a living process other than this one runs the attempt."""
        # Looking at the lock first would create its file.
        lock = Path(self.lock.lock_file)
        return lock.exists() and self.read().process != this_process() and is_held(lock)

    def finalize(self, cause: str = "", say: Callable[[str], object] | None = None) -> Attempt:
        """Waits for the attempt's process, if one lives, and records how the attempt ended.

        An attempt that is RUNNING without a process was killed, and one that is still WAITING is
        skipped. From now on no launcher starts the attempt again.

        Args:
          cause: added to the message of a killed attempt.
          say: called with a line where a process has to be waited for.
        """
        if say is not None and is_held(Path(self.lock.lock_file)):
            say(f"trial {self.read().trial} is still running since before; waiting for it")
        with locked(self.lock, f"the end of trial {self.read().trial}"):
            attempt = self.read()
            if attempt.status is Status.RUNNING:
                message = f"{DIED}: {cause}" if cause else DIED
                return self.update(status=Status.KILLED, message=message, over=True)
            if attempt.status is Status.WAITING:
                return self.update(status=Status.SKIPPED, message="it was not started")
            if attempt.status is Status.KILLED:
                return self.update(over=True)
            return attempt


_RECORD = "sweep.json"
# Contents of the file `stopped`.
_NEVER, _ON_FAILURE, _STOPPED = "never", "on failure", "stopped"


def sweep_fingerprint(overrides: Sequence[str], settings: str = "") -> str:
    """Returns 16 hexadecimal digits that two commands share if they are the same sweep.

    Args:
      overrides: of the command line, in any order, without those that change no trial's result.
      settings: of the sweeper, where the overrides do not contain them.
    """
    content = json.dumps([sorted(overrides), settings])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


class SweepDirectory:
    """The directory of one sweep, with a file for each attempt in `trials/`.

    Attributes:
      path: the directory.
      lock: held by the process that opened the sweep.
      joined: whether another process has opened the sweep, and this one takes part.
      devices: the folder of the locks of devices.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = FileLock(path / "lock")
        self.joined = False
        self.devices = path / "devices"
        self._state = path / "stopped"

    def attempt(self, number: int) -> AttemptFile:
        """Returns the file of an attempt."""
        return AttemptFile(self.path / "trials" / f"{number:04d}.json")

    def attempts(self) -> list[AttemptFile]:
        """Returns the files of all attempts, oldest first."""
        paths = self.path.glob("trials/*.json")
        return [AttemptFile(path) for path in sorted(paths) if path.stem.isdecimal()]

    def add(self, attempts: Sequence[Attempt]) -> range:
        """Writes files for attempts and returns their numbers."""
        # Only its owner may read it: the overrides are complete, secrets included.
        (self.path / "trials").mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self.path / "trials.lock", "the trials of the sweep"):
            last = max((int(file.path.stem) for file in self.attempts()), default=-1)
            numbers = range(last + 1, last + 1 + len(attempts))
            for number, attempt in zip(numbers, attempts, strict=True):
                self.attempt(number).write(attempt)
        return numbers

    def stop_on_failure(self, stop: bool) -> None:
        """Sets whether a trial's failure, from now on, stops the sweep.

        A process that joins others changes nothing: they may have stopped.
        """
        if self.joined:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._state.write_text(_ON_FAILURE if stop else _NEVER)

    def failed(self) -> None:
        """Stops the sweep after a trial's failure, if failures stop it."""
        if self._read_state() == _ON_FAILURE:
            self._state.write_text(_STOPPED)

    def stopped(self) -> bool:
        """Whether no further trial is to be started."""
        return self._read_state() == _STOPPED

    def _read_state(self) -> str:
        return self._state.read_text() if self._state.exists() else _NEVER

    def read(self) -> dict[str, Any] | None:
        """Returns the sweep's record; None if there is no sweep.

        Raises:
          RunDirectoryError: when it is of another format.
        """
        file = self.path / _RECORD
        if not file.is_file():
            return None
        content: dict[str, Any] = json.loads(file.read_text())
        require_format(content, file)
        return content

    def write(self, record: Mapping[str, Any]) -> None:
        """Writes the sweep's record atomically."""
        write_json(self.path / _RECORD, {"format": FORMAT, **record})


@contextmanager
def temporary_sweep(*, shared: bool) -> Iterator[SweepDirectory]:
    """Yields the directory of a sweep that is deleted at the end.

    If `shared`, other machines must see it: it is then in the current directory.
    """
    parent = Path.cwd() if shared else None
    with tempfile.TemporaryDirectory(prefix=".sweep-", dir=parent) as folder:
        yield SweepDirectory(Path(folder))


def open_sweep(
    container: Path,
    fingerprint: str,
    resume: Resume,
    *,
    overrides: Sequence[str] = (),
    join: bool = False,
) -> SweepDirectory:
    """Returns the directory of the same sweep, to be resumed, or a new, numbered one.

    Its lock is taken, unless `join` allows another living process to hold it.

    Args:
      container: the folder of numbered sweeps.
      fingerprint: the sweep's.
      resume: `auto` resumes the newest sweep that is the same; `must` only resumes; `never` starts
        a new one.
      overrides: for the sweep's record, with secrets masked.
      join: whether several processes may work at the sweep.

    Raises:
      RunInUseError: another process works at it.
      RunDirectoryError: when `must` finds no such sweep, a sweep in `container` is of another
        format, or `container` cannot be made.
    """
    make_container(container, "hydra.sweep.dir")
    with locked(container / ".lock", "the folder of sweeps"):
        for path in numbered_folders(container) if resume is not Resume.never else ():
            directory = SweepDirectory(path)
            record = directory.read()
            if record is not None and record["fingerprint"] == fingerprint:
                _claim(directory, join)
                return directory
        if resume is Resume.must:
            state = f"{container} holds no sweep of this command"
            remedy = "use resume=auto to start one"
            raise RunDirectoryError.of(state, "resume=must only resumes", remedy)
        directory = SweepDirectory(next_numbered_folder(container))
        directory.path.mkdir()
        _claim(directory, join=False)
        directory.write({"fingerprint": fingerprint, "overrides": list(overrides)})
        return directory


def _claim(directory: SweepDirectory, join: bool) -> None:
    try:
        directory.lock.acquire(timeout=0)
    except Timeout as error:
        if not join:
            raise RunInUseError(
                Problem(
                    f"{directory.path} is in use",
                    "another process works at this sweep",
                    "wait for it or end it; resume=never starts another sweep beside it",
                ),
                directory.path,
            ) from error
        directory.joined = True
