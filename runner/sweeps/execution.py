"""Launches the trials of a sweep, again where they fail, and says what became of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.errors import InterruptedRunError, Problem, SweepError
from runner.sweeps.attempt import FAILURES, Attempt, TrialStatus, this_process
from runner.sweeps.points import Point
from runner.sweeps.sweep_directory import SweepDirectory

# Takes the overrides of each job and the number of the first.
Launch = Callable[[Sequence[Sequence[str]], int], object]


@dataclass(frozen=True)
class Planned:
    """A trial that is to be run.

    Attributes:
      number: of the trial in its sweep.
      point: its overrides.
      fingerprint: of its configuration; empty where it is not known.
      metric: the name of `train.objective`.
      study: where intermediate values are reported; None where nobody asks for them.
    """

    number: int
    point: Point
    fingerprint: str = ""
    metric: str = ""
    study: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class _Turn:
    """A planned trial's next attempt, and whether that is launched by itself."""

    planned: Planned
    attempt: int = 1
    alone: bool = False


class Execution:
    """Carries out trials by a launcher.

    A launcher may itself fail when a process of its own dies, and take other trials along. Which
    one was the cause shows when each is launched by itself, from its last checkpoint.

    Args:
      directory: the sweep's.
      launch: the launcher.
      retries: how often a trial that fails is tried again.
    """

    def __init__(self, directory: SweepDirectory, launch: Launch, retries: int) -> None:
        self._directory, self._launch, self._retries = directory, launch, retries

    def run(self, planned: Sequence[Planned]) -> list[Attempt]:
        """Returns the last attempt of each trial, in their order.

        Raises:
          SweepError: when the launcher starts nothing at all.
          InterruptedRunError: after a signal.
        """
        ended: dict[int, Attempt] = {}
        turns = [_Turn(each) for each in planned]
        while turns:
            # Those to be launched by themselves come last, one at a time.
            together = [each for each in turns if not each.alone] or turns[:1]
            rest = [each for each in turns if each not in together]
            turns = [*self._carry_out(together, ended), *rest]
        return [ended[each.number] for each in planned]

    def _carry_out(self, turns: Sequence[_Turn], ended: dict[int, Attempt]) -> list[_Turn]:
        """Launches once; notes what has ended and returns what is to be launched again."""
        numbers = self._directory.add([self._attempt(each) for each in turns])
        crash: Exception | None = None
        try:
            self._launch([each.planned.point.overrides for each in turns], numbers[0])
        except InterruptedRunError:
            raise
        except Exception as error:  # noqa: BLE001 - launchers raise their libraries' errors
            crash = error
        attempts = [self._directory.attempt(number).settle() for number in numbers]
        unstarted = [each.status is TrialStatus.SKIPPED for each in attempts]
        if crash is not None and all(unstarted) and not self._directory.stopped():
            raise SweepError(
                Problem(
                    "the launcher started no trial",
                    f"{type(crash).__name__}: {crash}",
                    "look at hydra/launcher and its settings",
                )
            ) from crash
        again = []
        for turn, attempt in zip(turns, attempts, strict=True):
            following = self._following(turn, attempt, crashed=crash is not None, of=len(turns))
            if following is None:
                ended[turn.planned.number] = attempt
                if attempt.status in FAILURES:
                    self._directory.failed()
            else:
                again.append(following)
        return again

    def _following(self, turn: _Turn, attempt: Attempt, *, crashed: bool, of: int) -> _Turn | None:
        """Returns the trial's next turn, or None when it has ended."""
        if self._directory.stopped():
            return None
        if crashed and attempt.status is TrialStatus.SKIPPED:
            return turn
        if crashed and attempt.status is TrialStatus.KILLED and of > 1:
            return replace(turn, alone=True)
        if attempt.status in FAILURES and turn.attempt <= self._retries:
            return replace(turn, attempt=turn.attempt + 1)
        return None

    def _attempt(self, turn: _Turn) -> Attempt:
        return Attempt(
            turn.planned.number,
            turn.attempt,
            turn.planned.point.overrides,
            turn.planned.point.values,
            turn.planned.fingerprint,
            turn.planned.metric,
            last=turn.attempt > self._retries,
            sweeper=this_process(),
            study=turn.planned.study,
        )
