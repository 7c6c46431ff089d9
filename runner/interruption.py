"""Turns SIGINT and SIGTERM into an orderly end of the run, within a bounded time."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from runner.errors import InterruptedRunError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_SECONDS = 25.0
# How long a second signal leaves for what ends by itself at once.
_AT_ONCE_SECONDS = 2.0


class Interruption:
    """Remembers the first signal; during a loop it waits for the step in flight to end.

    Outside a loop the first signal raises `InterruptedRunError` at once, inside one the second.
    A process that is still there when the grace period after the first signal has passed, or 2
    seconds after the second, ends as by SIGKILL, but with the exit code of the signal: a thread
    sees to that, because Python handles no signal while an operation of TensorFlow's goes on.
    """

    def __init__(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Stores how long after the first signal the process ends at the latest, in seconds."""
        self._grace = grace_seconds
        self._received: signal.Signals | None = None
        self._deadline: float | None = None
        self._in_loop = False

    def received(self) -> bool:
        """Whether a signal has come."""
        return self._received is not None

    def remaining(self) -> float | None:
        """Returns the seconds that are left of the grace period; None before a signal."""
        if self._received is None:
            return None
        # The thread may not have seen the signal yet.
        deadline = self._deadline
        return self._grace if deadline is None else max(0.0, deadline - time.monotonic())

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
        # Standard error may be led elsewhere for a time, as while something noisy is imported.
        terminal = os.dup(2)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        watcher = threading.Thread(target=self._watch, args=(reader, terminal), daemon=True)
        watcher.start()
        # Told by the system at once, where the handlers wait for the main thread.
        woken_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        before = [signal.signal(each, self._handle) for each in SIGNALS]
        try:
            yield self
        finally:
            for each, handler in zip(SIGNALS, before, strict=True):
                signal.signal(each, handler)
            signal.set_wakeup_fd(woken_before)
            os.close(writer)
            watcher.join()
            os.close(reader)
            os.close(terminal)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside the block the first signal is only remembered."""
        self._in_loop = True
        try:
            yield
        finally:
            self._in_loop = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In this block within a deferred one a signal raises at once, also one from before it."""
        self.check()
        before, self._in_loop = self._in_loop, False
        try:
            yield
        finally:
            self._in_loop = before

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = self._received is None
        self._received = signal.Signals(number)
        if not (first and self._in_loop):
            raise InterruptedRunError(self._received)

    def _watch(self, reader: int, terminal: int) -> None:
        """Ends the process when its time is over; returns when the other end is closed."""
        last, cause = signal.SIGTERM, ""
        while True:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            if not select.select([reader], [], [], left)[0]:
                end_at_once(last, terminal, cause)
            numbers = os.read(reader, 64)
            if not numbers:
                return
            for number in numbers:
                if number in SIGNALS:
                    last = signal.Signals(number)
                    again = self._deadline is not None
                    seconds = _AT_ONCE_SECONDS if again else self._grace
                    cause = (
                        "a second signal does not wait for the step, which is not saved"
                        if again
                        else f"it could not be saved in session.grace_seconds={self._grace:g}"
                    )
                    ends = time.monotonic() + seconds
                    self._deadline = min(ends, self._deadline or ends)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Inside the block, in which nothing is begun yet, a signal ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminal = os.dup(2)
    before = [
        signal.signal(each, lambda number, _: end_at_once(number, terminal)) for each in SIGNALS
    ]
    try:
        yield
    finally:
        for each, handler in zip(SIGNALS, before, strict=True):
            signal.signal(each, handler)
        os.close(terminal)


def end_at_once(number: int, terminal: int, cause: str = "") -> NoReturn:
    """Says why, and ends the process without any cleaning up.

    Args:
      number: the signal.
      terminal: where to say it, a file descriptor.
      cause: why the run was not ended in good order.
    """
    error = InterruptedRunError(signal.Signals(number), cause)
    # Not print: the main thread may hold the stream's lock.
    os.write(terminal, f"runner: {error}\n".encode())
    os._exit(error.exit_code)
