"""Notices that another task of a collective is lost, while a step waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

_Session: TypeAlias = tf.compat.v1.Session


class PeerWatch:
    """Closes a session when another task is lost, because the session's step would wait for it.

    Where a connection breaks, TensorFlow itself ends the step. This notices a machine that vanishes
    silently, and a process that was started again where none of its steps was under way.

    Args:
      is_lost: whether a task is lost.
      session: the session to close.
      poll_secs: how often to check.
    """

    def __init__(self, is_lost: Callable[[], bool], session: _Session, poll_secs: float) -> None:
        self._is_lost, self._session, self._poll_secs = is_lost, session, poll_secs
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops watching: the session has ended, or no longer needs the other tasks."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._poll_secs):
            try:
                lost = self._is_lost()
            except RuntimeError:
                return  # The session is closed.
            except tf.errors.OpError:
                continue  # It is being closed, or a server is.
            if lost and not self._ended.is_set():
                self._session.close()
                return
