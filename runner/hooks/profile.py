"""Profiles a few steps when a file asks for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from runner.config.schedule import When
from runner.hooks.scheduled import Clock, ScheduledHook

_RunContext: TypeAlias = tf.compat.v1.train.SessionRunContext
_RunValues: TypeAlias = tf.compat.v1.train.SessionRunValues
_Session: TypeAlias = tf.compat.v1.Session

REQUEST = "profile"


class ProfileOnDemandHook(ScheduledHook):
    """Looks for the file `DIRECTORY/profile`, removes it, and profiles the next steps.

    `touch` makes the file, also from another machine. The profile goes beside it, below
    `plugins/profile/`, where TensorBoard finds it.
    """

    def __init__(
        self,
        directory: Path | str,
        step: tf.Tensor,
        steps: int = 5,
        every: When = "1 second",
        clock: Clock = time.monotonic,
    ) -> None:
        """Stores its arguments.

        Args:
          directory: where the request is looked for and the profile written.
          step: the global step after the train op has run.
          steps: how many steps to profile.
          every: the schedule of looking for the file.
          clock: seconds from any origin.

        Raises:
          ValueError: when `steps` is below 1.
        """
        super().__init__(step, every, clock=clock)
        if steps < 1:
            raise ValueError(f"{steps} steps to profile; at least 1 is needed")
        self._directory, self._steps = Path(directory), steps
        self._until: int | None = None

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        """Gives up a profile that an abandoned session left open."""
        super().after_create_session(session, coord)
        self._stop()

    def after_run(self, run_context: _RunContext, run_values: _RunValues) -> None:
        """Ends a profile, or looks for a request."""
        super().after_run(run_context, run_values)
        if self._until is not None and self._step >= self._until:
            self._stop()

    def act(self, session: _Session, step: int) -> None:
        """Begins a profile if one is asked for."""
        request = self._directory / REQUEST
        if self._until is None and request.is_file():
            request.unlink()
            tf.profiler.experimental.start(str(self._directory))
            self._until = step + self._steps

    def end(self, session: _Session) -> None:
        """Ends a profile that is still open."""
        self._stop()

    def _stop(self) -> None:
        if self._until is not None:
            tf.profiler.experimental.stop()
            self._until = None
