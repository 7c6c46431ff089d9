"""The files of a sweep: what identifies it, and its attempts at trials."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from runner.errors import Problem, RunDirectoryError, RunInUseError
from runner.sweeps.attempt import Attempt, AttemptFile
from runner.system.atomic_files import make_container, write_json

RECORD = "sweep.json"


@dataclass(frozen=True)
class SweepIdentity:
    """What makes two commands the same sweep.

    Attributes:
      overrides: of the command line, without those that change no trial's result.
      search: what is searched and how, where that is not in the overrides.
    """

    overrides: tuple[str, ...]
    search: str = ""

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits; the order of the overrides does not count."""
        text = json.dumps([sorted(self.overrides), self.search])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class SweepDirectory:
    """The folder of one sweep, `trials/` with a file for each attempt in it.

    Attributes:
      path: it.
      lock: of the process that opened the sweep.
      joined: whether another process has opened the sweep, and this one takes part.
    """

    def __init__(self, path: Path) -> None:
        """Stores the path."""
        self.path = path
        self.lock = FileLock(path / "lock")
        self.joined = False
        self._stop = path / "stopped"
        self._held = path / "held"

    def attempt(self, number: int) -> AttemptFile:
        """Returns the file of an attempt."""
        return AttemptFile(self.path / "trials" / f"{number:04d}.json")

    def attempts(self) -> list[AttemptFile]:
        """Returns those of all attempts, in the order of their making."""
        return [AttemptFile(path) for path in sorted(self._trials())]

    def add(self, attempts: Sequence[Attempt]) -> range:
        """Makes files for attempts and returns their numbers."""
        folder = self.path / "trials"
        # Its owner alone may read it: a trial goes on by its overrides, secrets included.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(self.path / "trials.lock"):
            last = max((int(path.stem) for path in self._trials()), default=-1)
            numbers = range(last + 1, last + 1 + len(attempts))
            for number, attempt in zip(numbers, attempts, strict=True):
                self.attempt(number).write(attempt)
        return numbers

    def stopped(self) -> bool:
        """Whether no further trial is to be started."""
        return self._stop.exists() and self._stop.read_text() == "stopped"

    def stop_on_failure(self, stop: bool) -> None:
        """Says whether a trial's failure, from now on, is to stop the sweep.

        Who joins others leaves it as it is: they may have stopped.
        """
        if self.joined:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._stop.write_text("on failure" if stop else "never")
        self.go_on()

    def stops_on_failure(self) -> bool:
        """Whether a trial's failure is yet to stop the sweep."""
        return self._stop.exists() and self._stop.read_text() == "on failure"

    def failed(self, *, last: bool = True) -> None:
        """Stops the sweep if that is what a failure does; holds it if the trial is tried again."""
        if not self.stops_on_failure():
            return
        if last:
            self._stop.write_text("stopped")
        else:
            self._held.touch()

    def held(self) -> bool:
        """Whether no trial is to be started before a failed one is tried again."""
        return self._held.exists()

    def go_on(self) -> None:
        """Has trials started again after they were held."""
        self._held.unlink(missing_ok=True)

    def read(self) -> dict[str, Any] | None:
        """Returns the sweep's record, or None when the folder holds none."""
        file = self.path / RECORD
        if not file.is_file():
            return None
        content: dict[str, Any] = json.loads(file.read_text())
        return content

    def _trials(self) -> list[Path]:
        return [path for path in self.path.glob("trials/*.json") if path.stem.isdecimal()]


@contextmanager
def unrecorded_sweep(*, shared: bool) -> Iterator[SweepDirectory]:
    """Gives the directory of a sweep that leaves nothing behind.

    Args:
      shared: whether other machines are to see it, as they do the current directory, but not this
        one's own for temporary files.
    """
    place = Path.cwd() if shared else None
    with tempfile.TemporaryDirectory(prefix=".sweep-", dir=place) as folder:
        yield SweepDirectory(Path(folder))


def open_sweep(
    container: Path,
    identity: SweepIdentity,
    resume: str,
    *,
    join: bool = False,
    masked: Callable[[Sequence[str]], list[str]] = list,
) -> SweepDirectory:
    """Returns the directory of the same sweep, to go on with, or a new, numbered one.

    Its lock is taken, unless `join` allows another living process to hold it.

    Args:
      container: the folder that holds sweeps.
      identity: what makes a sweep the same.
      resume: `auto` goes on with the newest one that is the same; `must` only goes on; `never`
        begins anew.
      join: whether several processes may work at the sweep.
      masked: takes the secrets out of overrides, for the sweep's record.

    Raises:
      RunInUseError: another process works at it.
      RunDirectoryError: when `must` finds no such sweep, or `container` cannot be made.
    """
    make_container(container, "hydra.sweep.dir")
    with FileLock(container / ".lock"):
        numbers = sorted(int(p.name) for p in container.glob("*") if p.name.isdecimal())
        for number in reversed(numbers) if resume != "never" else ():
            directory = SweepDirectory(container / f"{number:03d}")
            record = directory.read()
            if record is not None and record["fingerprint"] == identity.fingerprint:
                _claim(directory, join)
                return directory
        if resume == "must":
            raise RunDirectoryError(
                Problem(
                    f"{container} holds no sweep of this command",
                    "resume=must only resumes",
                    "use resume=auto to start one",
                )
            )
        directory = SweepDirectory(container / f"{max(numbers, default=0) + 1:03d}")
        directory.path.mkdir()
        _claim(directory, join=False)
        shown = masked(identity.overrides)
        record = {"fingerprint": identity.fingerprint, "overrides": shown}
        write_json(directory.path / RECORD, record)
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
