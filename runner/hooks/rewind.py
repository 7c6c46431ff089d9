"""Tells a recorder from which step a session goes on."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


class RewindHook(tf.compat.v1.train.SessionRunHook):
    """Calls `rewind` with the global step of every session that is created.

    A session that resumes or recovers goes on from a checkpoint: the steps after it are recorded
    again.
    """

    def __init__(self, rewind: Callable[[int], None]) -> None:
        """Stores its argument, normally `Tracker.rewind`."""
        self._rewind = rewind

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Tells the step."""
        self._rewind(int(session.run(tf.compat.v1.train.get_global_step())))
