"""Tells how long steps take, and how much of that they wait for input."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from runner.config.schedule import When
from runner.hooks.metrics import Record
from runner.hooks.scheduled import Clock, ScheduledHook

_RunArgs: TypeAlias = tf.compat.v1.train.SessionRunArgs
_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues
_Session: TypeAlias = tf.compat.v1.Session


class StepTimingHook(ScheduledHook):
    """Records means per step since the last record, in seconds.

    `time/step` is all of it: `time/input` the wait for the batch, `time/compute` the rest of the
    session's run, `time/outside` what hooks and the loop take in between.
    """

    def __init__(
        self,
        input_seconds: tf.Tensor,
        step: tf.Tensor,
        record: Record,
        every: When = 100,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Stores its arguments.

        Args:
          input_seconds: how long the step waited for its batch, a float scalar.
          step: the global step after the train op has run.
          record: is given the means by name, and the step.
          every: the schedule.
          clock: seconds from any origin.
        """
        super().__init__(step, every, clock=clock)
        self._input_seconds, self._record = input_seconds, record

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        """Starts counting."""
        super().after_create_session(session, coord)
        self._reset(self._clock())

    def before_run(self, run_context: _RunContext) -> _RunArgs:
        """Asks for the wait."""
        self._started = self._clock()
        return _RunArgs((self._step_after, self._input_seconds))

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Adds up, and records where it is due."""
        now = self._clock()
        step, waited = run_values.results
        self._step = int(step)
        self._count += 1
        self._inside += now - self._started
        self._waited += float(waited)
        if self._trigger.due(self._step, now):
            self._record(self._means(now), self._step)
            self._reset(now)

    def end(self, session: _Session) -> None:
        """Does nothing: what is left is too short to be a mean of its own."""

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
_UNIT = 1 if sys.platform == "darwin" else 1024


def peak_bytes() -> int:
    """Returns the largest resident set that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


class MemoryHook(ScheduledHook):
    """Records `memory/peak_mib`, the largest resident set of the process so far, in MiB."""

    def __init__(
        self,
        step: tf.Tensor,
        record: Record,
        every: When = 100,
        peak: Callable[[], int] = peak_bytes,
        clock: Clock = time.monotonic,
    ) -> None:
        """Stores its arguments.

        Args:
          step: the global step after the train op has run.
          record: is given the value by name, and the step.
          every: the schedule.
          peak: returns the bytes.
          clock: seconds from any origin.
        """
        super().__init__(step, every, clock=clock)
        self._record, self._peak = record, peak

    def act(self, session: tf.compat.v1.Session, step: int) -> None:
        """Records."""
        self._record({"memory/peak_mib": self._peak() / 2**20}, step)
