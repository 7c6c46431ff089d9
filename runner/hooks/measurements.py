"""Measures training: the time of its steps, the memory of its process, profiles on demand."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from runner.config.schedule import When
from runner.hooks.metrics import Record
from runner.hooks.scheduled import Clock, RunArgs, RunContext, RunValues, ScheduledHook, Session


class StepTimingHook(ScheduledHook):
    """Records means per step since the last record, in seconds.

    `time/step` is all of it: `time/input` the wait for the batch, `time/compute` the rest of the
    session's run, `time/outside` what hooks and the loop take in between.

    Args:
      input_seconds: how long the step waited for its batch, a float scalar.
      step: the global step after the train op has run.
      record: takes the means by name, and the step.
      every: the schedule, by default 100 steps.
      clock: seconds from any origin; for tests.
    """

    def __init__(
        self,
        input_seconds: tf.Tensor,
        step: tf.Tensor,
        record: Record,
        every: When = 100,
        clock: Clock = time.perf_counter,
    ) -> None:
        super().__init__(step, every, clock=clock)
        self._input_seconds, self._record = input_seconds, record

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Starts counting."""
        super().after_create_session(session, coord)
        self._reset(self._clock())

    def before_run(self, run_context: RunContext) -> RunArgs:
        """Fetches the step and its wait for input."""
        self._started = self._clock()
        return RunArgs((self._step_after, self._input_seconds))

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Adds the step to the sums, and records the means where they are due."""
        now = self._clock()
        step, waited = run_values.results
        self._step = int(step)
        self._count += 1
        self._inside += now - self._started
        self._waited += float(waited)
        if self._trigger.due(self._step, now):
            self._record(self._means(now), self._step)
            self._reset(now)

    def end(self, session: Session) -> None:
        """Does nothing: the steps since the last record are too few for a mean."""

    def _means(self, now: float) -> dict[str, float]:
        whole = now - self._since
        return {
            "time/step": whole / self._count,
            "time/input": self._waited / self._count,
            "time/compute": (self._inside - self._waited) / self._count,
            "time/outside": (whole - self._inside) / self._count,
        }

    def _reset(self, now: float) -> None:
        self._since, self._count, self._inside, self._waited = now, 0, 0.0, 0.0


# ru_maxrss counts kibibytes on Linux and bytes on macOS.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def peak_bytes() -> int:
    """Returns the largest resident set that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


class MemoryHook(ScheduledHook):
    """Records `memory/peak_mib`, the largest resident set of the process so far, in MiB.

    Args:
      step: the global step after the train op has run.
      record: takes the value by name, and the step.
      every: the schedule, by default 100 steps.
      peak: returns the bytes; for tests.
      clock: seconds from any origin; for tests.
    """

    def __init__(
        self,
        step: tf.Tensor,
        record: Record,
        every: When = 100,
        peak: Callable[[], int] = peak_bytes,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(step, every, clock=clock)
        self._record, self._peak = record, peak

    def act(self, session: Session, step: int) -> None:
        """Records."""
        self._record({"memory/peak_mib": self._peak() / 2**20}, step)


PROFILE_REQUEST = "profile"


class ProfileOnDemandHook(ScheduledHook):
    """Profiles a few steps when the file `DIRECTORY/profile` appears, which it removes.

    `touch` makes the file, also from another machine. The profile is written beside it, below
    `plugins/profile/`, where TensorBoard finds it.

    Args:
      directory: where the file is looked for and the profile written.
      step: the global step after the train op has run.
      steps: how many steps to profile, by default 5.
      every: how often to look for the file, by default every second.
      clock: seconds from any origin; for tests.

    Raises:
      ValueError: when `steps` is below 1.
    """

    def __init__(
        self,
        directory: Path | str,
        step: tf.Tensor,
        steps: int = 5,
        every: When = "1 second",
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(step, every, clock=clock)
        if steps < 1:
            raise ValueError(f"{steps} steps to profile; at least 1 is needed")
        self._directory, self._steps = Path(directory), steps
        self._until: int | None = None

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Ends a profile that an abandoned session left open."""
        super().after_create_session(session, coord)
        self._stop()

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Ends a profile, or looks for the file."""
        super().after_run(run_context, run_values)
        if self._until is not None and self._step >= self._until:
            self._stop()

    def act(self, session: Session, step: int) -> None:
        """Starts a profile if the file is there."""
        request = self._directory / PROFILE_REQUEST
        if self._until is None and request.is_file():
            request.unlink()
            tf.profiler.experimental.start(str(self._directory))
            self._until = step + self._steps

    def end(self, session: Session) -> None:
        """Ends a profile that is still open."""
        self._stop()

    def _stop(self) -> None:
        if self._until is not None:
            tf.profiler.experimental.stop()
            self._until = None
