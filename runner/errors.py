"""The errors a user can cause, each with its state, cause, remedy and nearest valid choices."""

from __future__ import annotations

import copy
import difflib
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none.


@dataclass(frozen=True)
class Problem:
    """One mistake, in the words of the person who has to fix it.

    Attributes:
      state: the state that is wrong, with the offending value.
      cause: why it is wrong.
      remedy: what to type or change.
      choices: valid values, nearest first; shown when there are any.
    """

    state: str
    cause: str = ""
    remedy: str = ""
    choices: Sequence[str] = ()

    def within(self, key: str) -> Problem:
        """Returns the problem with the key, or another place, before its state."""
        return replace(self, state=f"{key}: {self.state}") if key else self

    def __str__(self) -> str:
        lines = [self.state]
        if self.cause:
            lines.append(f"  cause: {self.cause}")
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        if self.choices:
            lines.append(f"  choices: {', '.join(self.choices)}")
        return "\n".join(lines)


class RunnerError(Exception):
    """One or more problems, reported together.

    Attributes:
      problems: every problem, in the order of its detection.
      exit_code: the exit code of `python -m runner` when this error ends it.
    """

    exit_code: int = 1

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)
        self.problems = problems

    @classmethod
    def of(cls, state: str, cause: str = "", remedy: str = "", choices: Sequence[str] = ()) -> Self:
        """Returns the error of one problem, with the attributes of `Problem`."""
        return cls(Problem(state, cause, remedy, choices))

    @classmethod
    @contextmanager
    def within(cls, key: str = "", collected: list[Problem] | None = None) -> Iterator[None]:
        """Names a key in the problems of the errors of this class that the block raises.

        Args:
          key: the key, or another place; empty names none.
          collected: takes the problems, and nothing is raised; None raises them.
        """
        try:
            yield
        except cls as error:
            problems = [problem.within(key) for problem in error.problems]
            if collected is None:
                named = copy.copy(error)
                named.problems = tuple(problems)
                raise named from error
            collected += problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class ConfigError(RunnerError):
    """The command line or the configuration cannot be run as it stands."""

    exit_code = 2


class CheckpointError(RunnerError):
    """A checkpoint is missing, damaged, or not what the configuration describes."""

    exit_code = 2


class PlanError(RunnerError):
    """The restoration plan has problems, so no session was opened."""

    exit_code = 3


class RunDirectoryError(RunnerError):
    """The run directory cannot be used: owned by another process, or not what `resume` asks."""

    exit_code = 2


class RunInUseError(RunDirectoryError):
    """A living process owns the run.

    Attributes:
      path: the run's directory.
    """

    def __init__(self, problem: Problem, path: Path) -> None:
        super().__init__(problem)
        self.args = (problem, path)  # Pickling builds the error from these.
        self.path = path


class TrackingError(RunnerError):
    """The tracking store cannot be used."""


class TrackingUriError(TrackingError):
    """`tracking.uri` names a store that MLflow does not offer."""

    exit_code = 2


class NotInStoreError(TrackingError):
    """The tracking store does not have what the command or the configuration names."""

    exit_code = 2


class ClusterError(RunnerError):
    """Another task of the cluster does not answer, or has failed."""


class LostServerError(ClusterError):
    """Another task was lost and the session cannot recover; a restart of the process can.

    Attributes:
      exit_code: the code of a killed process, which launchers start again.
    """

    exit_code = 137


class NonFiniteLossError(RunnerError):
    """The loss became NaN or infinite, so training stopped."""


class SaveError(RunnerError):
    """A checkpoint or a record could not be written, because the disk is full for example."""


class UserCodeError(RunnerError):
    """Code that the configuration names, such as a model, a metric or a hook, raised an error.

    Attributes:
      details: the frames of that code, and the error as Python prints it.
      place: the key of the configuration that names the code, or ''.
    """

    def __init__(self, problem: Problem, details: str, place: str = "") -> None:
        super().__init__(problem)
        self.args = (problem, details, place)
        self.details, self.place = details, place


class OutputError(RunnerError):
    """Standard output could not be written."""


class InterruptedRunError(RunnerError):
    """A signal ended the command; a run is saved, and the same command resumes it.

    Args:
      number: the signal.
      cause: why the run did not end in an orderly way.
      resumable: whether there is a run that the same command continues.

    Attributes:
      exit_code: 128 plus the signal's number, as shells have it: 130 or 143.
    """

    def __init__(self, number: signal.Signals, cause: str = "", *, resumable: bool = False) -> None:
        remedy = "the same command continues the run" if resumable else ""
        super().__init__(Problem(f"ended by {number.name}", cause, remedy))
        self.args = (number,)  # Pickling builds the error from these.
        self.exit_code = 128 + number


class PrunedRunError(RunnerError):
    """A sweep's pruner ended the trial because others were better; its last step is saved."""


class SweepError(RunnerError):
    """Trials of a sweep failed; the others are kept.

    Attributes:
      exit_code: the exit code that the failed trials have in common, otherwise 1.
    """

    def __init__(self, problem: Problem, exit_code: int = 1) -> None:
        super().__init__(problem)
        self.args = (problem, exit_code)
        self.exit_code = exit_code


def require_all(*checks: Callable[[], object]) -> None:
    """Runs several checks and reports the problems of all.

    Raises:
      ConfigError: with the problems of all checks that raise one.
    """
    problems: list[Problem] = []
    for check in checks:
        with ConfigError.within(collected=problems):
            check()
    if problems:
        raise ConfigError(*problems)


def described_type(value: object) -> str:
    """Returns what a value is, such as `an int`, `a function` or `None`."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def similar(name: str, valid: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Returns up to `count` of the `valid` names that resemble `name`, closest first."""
    return tuple(difflib.get_close_matches(name, sorted(set(valid)), n=count, cutoff=0.6))


def nearest(name: str, valid: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Returns up to `count` of many `valid` names.

    Names that resemble `name` are returned closest first. If there are none, the first names in
    alphabetical order are returned, so that a reader always sees some valid names.
    """
    names = sorted(set(valid))
    return similar(name, names, count) or tuple(names[:count])


def ranked(name: str, valid: Iterable[str]) -> tuple[str, ...]:
    """Returns all of few `valid` names: first the ones that resemble `name`, then the rest."""
    names = tuple(valid)
    return tuple(dict.fromkeys((*similar(name, names), *names)))
