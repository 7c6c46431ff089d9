"""Records how much memory the process takes."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

import tensorflow as tf

from runner.hooks.metrics import Record
from runner.hooks.scheduled import Clock, ScheduledHook
from runner.schedule import When

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
