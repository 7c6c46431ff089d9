"""Launches the trials of a sweep, again where they fail, and says what became of each."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.errors import InterruptedRunError, Problem, SweepError
from runner.sweeps.attempt import DIED, FAILURES, Attempt, AttemptFile, TrialStatus
from runner.sweeps.points import Point
from runner.sweeps.sweep_directory import SweepDirectory
from runner.system.locks import this_process
from runner.system.signals import Interruption

logger = logging.getLogger(__name__)

# Takes the overrides of each job and the number of the first.
Launch = Callable[[Sequence[Sequence[str]], int], object]
Withdraw = Callable[[Collection[int]], object]

_LOOK_SECONDS = 0.1
# Of what is left of the grace period, for what the sweep itself has to record after its trials.
_RESERVED = 0.2


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
    """A planned trial's next attempt.

    Attributes:
      planned: the trial.
      attempt: which one it is, from 1.
      alone: whether it is launched by itself.
      before: the last attempt that was started; None before any was.
    """

    planned: Planned
    attempt: int = 1
    alone: bool = False
    before: Attempt | None = None


class Execution:
    """Carries out trials by a launcher.

    A launcher may itself fail when a process of its own dies, and take other trials along. Which
    one was the cause shows when each is launched by itself, from its last checkpoint.

    After a signal, trials in other processes are called off: each saves its last step.

    Args:
      directory: the sweep's.
      launch: the launcher.
      retries: how often a trial that fails is tried again.
      interruption: tells of signals.
      collective: whether the death of one process may end those of other trials.
      withdraw: takes attempts, by their numbers, out of the queue of the launcher, if it has one.
    """

    def __init__(
        self,
        directory: SweepDirectory,
        launch: Launch,
        retries: int,
        interruption: Interruption | None = None,
        *,
        collective: bool = True,
        withdraw: Withdraw = lambda numbers: None,
    ) -> None:
        self._directory, self._launch, self._retries = directory, launch, retries
        self._interruption = interruption or Interruption()
        self._collective, self._withdraw = collective, withdraw

    def run(self, planned: Sequence[Planned]) -> list[Attempt]:
        """Returns the last attempt of each trial, in their order.

        Raises:
          SweepError: when the launcher starts nothing at all.
          InterruptedRunError: after a signal.
        """
        ended: dict[int, Attempt] = {}
        turns = [_Turn(each) for each in planned]
        while turns:
            together = self._next(turns)
            rest = [each for each in turns if each not in together]
            turns = [*self._carry_out(together, ended), *rest]
        return [ended[each.number] for each in planned]

    def _next(self, turns: Sequence[_Turn]) -> Sequence[_Turn]:
        """Returns what is launched together: trials to be launched by themselves come last.

        Where a failure stops the sweep, what may prove to be one comes before any other trial.
        """
        alone = [each for each in turns if each.alone]
        others = [each for each in turns if not each.alone]
        if self._directory.stops_on_failure():
            return alone[:1] or [each for each in others if each.before is not None] or others
        return others or alone[:1]

    def _carry_out(self, turns: Sequence[_Turn], ended: dict[int, Attempt]) -> list[_Turn]:
        """Launches once; notes what has ended and returns what is to be launched again."""
        self._directory.go_on()
        numbers = self._directory.add([self._attempt(each) for each in turns])
        files = [self._directory.attempt(number) for number in numbers]
        crash = self._launched([each.planned.point.overrides for each in turns], numbers[0], files)
        cause = f"{type(crash).__name__}: {_first_line(crash)}" if crash is not None else ""
        attempts = [file.settle(cause) for file in files]
        none = all(each.status is TrialStatus.SKIPPED for each in attempts)
        if crash is not None and none and not self._directory.stopped():
            raise SweepError(
                Problem(
                    "the launcher started no trial",
                    cause,
                    "look at hydra/launcher and its settings",
                )
            ) from crash
        if crash is not None:
            logger.warning("The launcher failed, %s", cause)
        again = []
        for turn, attempt in zip(turns, attempts, strict=True):
            following = self._following(turn, attempt, crashed=crash is not None, of=len(turns))
            if following is None:
                unstarted = attempt.status is TrialStatus.SKIPPED
                ended[turn.planned.number] = turn.before or attempt if unstarted else attempt
                if attempt.status in FAILURES:
                    self._directory.failed()
            else:
                again.append(following)
        return again

    def _launched(
        self, overrides: Sequence[Sequence[str]], first: int, files: Sequence[AttemptFile]
    ) -> Exception | None:
        """Launches, and returns what the launcher itself raised.

        Raises:
          InterruptedRunError: after a signal; no attempt goes on, but for what the grace period
            did not suffice for.
        """
        crash: Exception | None = None
        try:
            with self._interruption.telling(lambda: self._call_off(files)):
                self._launch(overrides, first)
        except InterruptedRunError:
            self._settle_ended(files)
            raise
        except Exception as error:  # noqa: BLE001 - launchers raise their libraries' errors
            crash = error
        except BaseException:
            self._settle_ended(files)
            raise
        if self._interruption.received():
            self._settle_ended(files)
            self._interruption.check()
        return crash

    def _call_off(self, files: Sequence[AttemptFile]) -> None:
        """Ends attempts in other processes, and waits for them as long as the signal allows."""
        for each in files:
            each.call_off()
        seconds = self._interruption.remaining() or 0.0
        waiting = [each for each in files if each.read().status is TrialStatus.WAITING]
        self._withdraw({int(each.path.stem) for each in waiting})
        told = False
        while (self._interruption.remaining() or 0.0) > _RESERVED * seconds:
            if not any(each.is_run_elsewhere() for each in files):
                return
            if not told:
                # Not print: the main thread may hold the stream's lock.
                os.write(2, b"runner: waits for trials to save their last step\n")
                told = True
            time.sleep(_LOOK_SECONDS)

    def _settle_ended(self, files: Sequence[AttemptFile]) -> None:
        """Says what became of attempts, but of those that a process is still at."""
        for each in files:
            if not each.is_run_elsewhere():
                each.settle()

    def _following(self, turn: _Turn, attempt: Attempt, *, crashed: bool, of: int) -> _Turn | None:
        """Returns the trial's next turn, or None when it has ended."""
        if self._directory.stopped():
            return None
        if attempt.status is TrialStatus.SKIPPED and (crashed or self._directory.held()):
            return turn
        taken_along = self._collective and crashed and of > 1
        if taken_along and attempt.message.startswith(DIED):
            return replace(turn, alone=True, before=attempt)
        if attempt.status in FAILURES and turn.attempt <= self._retries:
            return replace(turn, attempt=turn.attempt + 1, before=attempt)
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


def _first_line(error: Exception) -> str:
    """Returns the first line of an error's text: some libraries append a traceback."""
    return next(iter(str(error).splitlines()), "")
