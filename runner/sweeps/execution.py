"""Launches the trials of a sweep by one of Hydra's launchers, and retries failures."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from runner.errors import SweepError
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
      device_sets: the sets of devices of which each process takes one; empty for none.
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
        device_sets: tuple[str, ...] = (),
        crashes_together: bool = True,
        cancel_queued: Callable[[], object] = lambda: None,
    ) -> None:
        self._directory, self._launch, self._retries = directory, launch, retries
        self._interruption = interruption or Interruption()
        self._device_sets = device_sets
        self._crashes_together, self._cancel_queued = crashes_together, cancel_queued

    def run(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Runs trials, and returns the last attempt of each in the order of their first `attempts`.

        Raises:
          SweepError: when the launcher starts no trial at all.
          InterruptedRunError: after a signal.
        """
        ended: dict[int, Attempt] = {}
        together = [self._numbered(attempt, 1) for attempt in attempts]
        alone: list[Attempt] = []
        while together or alone:
            batch = together or [alone.pop(0)]
            together, suspects = self._run_batch(batch, ended)
            alone += suspects
        return [ended[attempt.trial] for attempt in attempts]

    def _run_batch(
        self, batch: Sequence[Attempt], ended: dict[int, Attempt]
    ) -> tuple[list[Attempt], list[Attempt]]:
        """Launches once, and adds to `ended`.

        Returns:
          The attempts to launch next, and those to launch one by one, each of which may have ended
          the others.
        """
        numbers = self._directory.add(batch)
        files = [self._directory.attempt(number) for number in numbers]
        crash = self._launched([attempt.overrides for attempt in batch], numbers[0], files)
        # Some libraries append a traceback to the first line of their errors' messages.
        cause = f"{type(crash).__name__}: {crash}".partition("\n")[0] if crash is not None else ""
        outcomes = [file.finalize(cause) for file in files]
        if crash is not None:
            started = any(outcome.status is not Status.SKIPPED for outcome in outcomes)
            if not started and not self._directory.stopped():
                remedy = "check hydra/launcher and its settings"
                raise SweepError.of("the launcher started no trial", cause, remedy) from crash
            logger.warning("The launcher failed, %s", cause)
        ended_together = self._crashes_together and crash is not None and len(batch) > 1
        following: list[Attempt] = []
        suspects: list[Attempt] = []
        for attempt, outcome in zip(batch, outcomes, strict=True):
            failed = outcome.status in FAILURES
            if outcome.status is not Status.SKIPPED:
                ended[attempt.trial] = outcome
            elif crash is not None and not self._directory.stopped():
                following.append(attempt)
            else:  # The attempt before it counts, if there is one.
                ended.setdefault(attempt.trial, outcome)
            if self._directory.stopped() or not failed:
                continue
            if ended_together and outcome.message.startswith(DIED):
                suspects.append(attempt)
            elif attempt.number <= self._retries:
                following.append(self._numbered(attempt, attempt.number + 1))
            else:
                self._directory.failed()
        return following, suspects

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
        return replace(
            attempt,
            number=number,
            last=last,
            sweeper=this_process(),
            device_sets=self._device_sets,
        )
