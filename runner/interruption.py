"""Turns SIGINT and SIGTERM into an orderly end of the run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from runner.errors import InterruptedRunError


class Interruption:
    """Remembers the first signal; during a loop it waits for the step in flight to end.

    Outside a loop the first signal raises `InterruptedRunError` at once, inside one the second.
    """

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._in_loop = False

    def received(self) -> bool:
        """Whether a signal has come."""
        return self._received is not None

    def check(self) -> None:
        """Raises `InterruptedRunError` if a signal has come."""
        if self._received is not None:
            raise InterruptedRunError(self._received)

    @contextmanager
    def handled(self) -> Iterator[Interruption]:
        """Handles the signals inside the block; in a thread other than the main one, none."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(each, self._handle) for each in signals]
        try:
            yield self
        finally:
            for each, handler in zip(signals, before, strict=True):
                signal.signal(each, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside the block the first signal is only remembered."""
        self._in_loop = True
        try:
            yield
        finally:
            self._in_loop = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = self._received is None
        self._received = signal.Signals(number)
        if not (first and self._in_loop):
            raise InterruptedRunError(self._received)
