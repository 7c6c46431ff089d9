"""Launches the trials of a sweep by one of Hydra's launchers, and retries failures."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from runner.errors import Problem, SweepError
from runner.sweeps.sweep_directory import DIED, FAILURES, Attempt, AttemptFile, SweepDirectory
from runner.system.locks import this_process
from runner.system.signals import Interruption
from runner.system.status import Status

logger = logging.getLogger(__name__)

# Takes the overrides of each job and the number of the first.
Launch = Callable[[Sequence[Sequence[str]], int], object]

_POLL_SECONDS = 0.1
# Share of the grace period for what the sweep itself has to record after its trials.
_RESERVED = 0.2


@dataclass(frozen=True)
class _Launch:
    """The next attempt at a trial.

    Attributes:
      attempt: the attempt.
      alone: whether no other trial is launched together with it.
      before: the trial's last attempt that was started; None for the first.
    """

    attempt: Attempt
    alone: bool = False
    before: Attempt | None = None


class Execution:
    """Runs trials by a launcher.

    A launcher may itself fail when one of its processes dies, and end other trials with it. Which
    trial was the cause shows when each is launched by itself, from its last checkpoint.

    After a signal, trials in other processes are cancelled: each saves its last step.

    Args:
      directory: the sweep's.
      launch: starts jobs, and returns when they have ended.
      retries: how often a trial that failed or was killed is retried.
      interruption: the signals that end the sweep.
      crashes_together: whether the death of one process may end other trials.
      cancel_queued: removes jobs that have not started from the launcher's queue.
    """

    def __init__(
        self,
        directory: SweepDirectory,
        launch: Launch,
        retries: int,
        *,
        interruption: Interruption | None = None,
        crashes_together: bool = True,
        cancel_queued: Callable[[], object] = lambda: None,
    ) -> None:
        self._directory, self._launch, self._retries = directory, launch, retries
        self._interruption = interruption or Interruption()
        self._crashes_together, self._cancel_queued = crashes_together, cancel_queued

    def run(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Runs trials, and returns the last attempt of each in the order of their first `attempts`.

        Raises:
          SweepError: when the launcher starts no trial at all.
          InterruptedRunError: after a signal.
        """
        ended: dict[int, Attempt] = {}
        launches = [_Launch(self._numbered(attempt, 1)) for attempt in attempts]
        while launches:
            alone = [launch for launch in launches if launch.alone]
            batch = [launch for launch in launches if not launch.alone] or [alone.pop(0)]
            launches = [*self._run_batch(batch, ended), *alone]
        return [ended[attempt.trial] for attempt in attempts]

    def _run_batch(self, batch: Sequence[_Launch], ended: dict[int, Attempt]) -> list[_Launch]:
        """Launches once, adds to `ended`, and returns what is to be launched again."""
        numbers = self._directory.add([launch.attempt for launch in batch])
        files = [self._directory.attempt(number) for number in numbers]
        crash = self._launched([launch.attempt.overrides for launch in batch], numbers[0], files)
        # Some libraries append a traceback to the first line of their errors' messages.
        cause = f"{type(crash).__name__}: {crash}".partition("\n")[0] if crash is not None else ""
        attempts = [file.finalize(cause) for file in files]
        if crash is not None:
            started = any(attempt.status is not Status.SKIPPED for attempt in attempts)
            if not started and not self._directory.stopped():
                remedy = "check hydra/launcher and its settings"
                raise SweepError(Problem("the launcher started no trial", cause, remedy)) from crash
            logger.warning("The launcher failed, %s", cause)
        ended_together = self._crashes_together and crash is not None and len(batch) > 1
        following = []
        for launch, attempt in zip(batch, attempts, strict=True):
            skipped = attempt.status is Status.SKIPPED
            if self._directory.stopped():
                retry = None
            elif skipped and crash is not None:
                retry = launch
            else:
                retry = self._retry(launch, attempt, ended_together=ended_together)
            if retry is not None:
                following.append(retry)
                continue
            ended[attempt.trial] = launch.before or attempt if skipped else attempt
            if attempt.status in FAILURES:
                self._directory.failed()
        return following

    def _retry(self, launch: _Launch, attempt: Attempt, *, ended_together: bool) -> _Launch | None:
        """Returns the launch after an attempt that has ended; None for no further one."""
        if ended_together and attempt.message.startswith(DIED):
            return replace(launch, alone=True, before=attempt)
        if attempt.status in FAILURES and launch.attempt.number <= self._retries:
            retry = self._numbered(launch.attempt, launch.attempt.number + 1)
            return replace(launch, attempt=retry, before=attempt)
        return None

    def _launched(
        self, overrides: Sequence[Sequence[str]], first: int, files: Sequence[AttemptFile]
    ) -> Exception | None:
        """Launches, and returns what the launcher itself raised.

        Raises:
          InterruptedRunError: after a signal; all attempts have ended, except those that the grace
            period was too short for.
        """
        crash: Exception | None = None
        try:
            try:
                with self._interruption.notifying(lambda: self._cancel(files)):
                    self._launch(overrides, first)
            except Exception as error:  # noqa: BLE001 - launchers raise their libraries' errors
                crash = error
            self._interruption.check()
        except BaseException:
            for file in files:
                if not file.runs_elsewhere():
                    file.finalize()
            raise
        return crash

    def _cancel(self, files: Sequence[AttemptFile]) -> None:
        """Ends attempts in other processes, and waits for them as long as the signal allows."""
        for file in files:
            file.cancel()
        seconds = self._interruption.remaining() or 0.0
        self._cancel_queued()
        if any(file.runs_elsewhere() for file in files):
            # Not print: the main thread may hold the stream's lock.
            os.write(2, b"runner: waiting for trials to save their last step\n")
        while (self._interruption.remaining() or 0.0) > _RESERVED * seconds:
            if not any(file.runs_elsewhere() for file in files):
                return
            time.sleep(_POLL_SECONDS)

    def _numbered(self, attempt: Attempt, number: int) -> Attempt:
        last = number > self._retries
        return replace(attempt, number=number, last=last, sweeper=this_process())
