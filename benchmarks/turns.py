"""A hook by which another loop takes turns with the one that it is in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow.compat.v1 as tf

WARM_UP = 50
# Short enough that a busy machine is busy for both loops.
BLOCK = 25


@dataclass(frozen=True)
class Taken:
    """The times of steps, in seconds.

    Attributes:
      wall: of the clock on the wall.
      cpu: of all processors, by all threads of the process.
    """

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Taken) -> Taken:
        return Taken(self.wall - other.wall, self.cpu - other.cpu)


def now() -> Taken:
    """Returns what both clocks show."""
    return Taken(time.perf_counter(), time.process_time())


class Turns(tf.train.SessionRunHook):
    """Lets the other loop take as many steps after every block of this loop's steps.

    The runner builds the hook from the configuration, so the class holds the measurements.

    Attributes:
      other: takes a number of steps of the other loop.
      theirs: the total time of the other loop's steps.
      ours: what this loop's took.
    """

    other: ClassVar[Callable[[int], object]]
    theirs: ClassVar[Taken]
    ours: ClassVar[Taken]

    def begin(self) -> None:
        """Warms up the other loop."""
        type(self).other(WARM_UP)
        type(self).theirs = type(self).ours = Taken()
        self._count, self._since = -WARM_UP, now()

    def after_run(self, run_context: Any, run_values: tf.train.SessionRunValues) -> None:
        """Counts, and hands over at the end of a block."""
        self._count += 1
        if self._count < 0 or self._count % BLOCK:
            return
        if self._count:
            handed_over = now()
            type(self).other(BLOCK)
            type(self).theirs += now() - handed_over
            type(self).ours += handed_over - self._since
        self._since = now()
