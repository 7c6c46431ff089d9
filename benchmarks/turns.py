"""A hook by which another loop takes turns with the one that it is in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow.compat.v1 as tf

WARM_UP = 50
# Short enough that a busy machine is busy for both loops.
BLOCK = 25


class Turns(tf.train.SessionRunHook):
    """Lets the other loop take as many steps after each block of this one's.

    The runner makes the hook itself, from the configuration; what is measured stays in its class.

    Attributes:
      other: takes a step of the other loop.
      seconds: what the other loop's steps took in all, and what this one's took.
    """

    other: ClassVar[Callable[[], object]]
    seconds: ClassVar[tuple[float, float]]

    def begin(self) -> None:
        """Warms up the other loop."""
        for _ in range(WARM_UP):
            type(self).other()
        type(self).seconds = (0.0, 0.0)
        self._count, self._since = -WARM_UP, 0.0

    def after_run(self, run_context: Any, run_values: tf.train.SessionRunValues) -> None:
        """Counts, and hands over at the end of a block."""
        self._count += 1
        if self._count < 0 or self._count % BLOCK:
            return
        if self._count:
            theirs, ours = self.seconds
            handed_over = time.perf_counter()
            for _ in range(BLOCK):
                type(self).other()
            taken = time.perf_counter() - handed_over
            type(self).seconds = (theirs + taken, ours + handed_over - self._since)
        self._since = time.perf_counter()
