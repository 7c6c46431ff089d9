"""Turns SIGINT and SIGTERM into an orderly end of the run, within a bounded time."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import ClassVar, NoReturn

from runner.errors import InterruptedRunError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_SECONDS = 25.0
# How long after a second signal the process may still end by itself.
_AT_ONCE_SECONDS = 2.0
# Wakes the thread that waits for a signal.
_WAKE_UP = b"\0"


@dataclass
class _Received:
    """The signals received, shared by nested interruptions.

    Attributes:
      received: the signal that ends the main thread; None before it has handled one.
      raised: whether `InterruptedRunError` has been raised in the main thread.
      all: every signal that it has handled.
      last: the newest signal that the watching thread has seen.
      deadline: when the process ends at the latest; None before that thread has seen a signal.
      cause: why it ends then.
      further: the signals handled besides SIGINT and SIGTERM.
      finished: whether signals are ignored from now on.
      keeps_process: whether the process continues even when its time is over.
      resumable: whether messages say that the same command continues the run.
    """

    received: signal.Signals | None = None
    raised: bool = False
    all: set[signal.Signals] = field(default_factory=set)
    last: signal.Signals = signal.SIGTERM
    deadline: float | None = None
    cause: str = ""
    further: tuple[signal.Signals, ...] = ()
    finished: bool = False
    keeps_process: bool = False
    resumable: bool = False

    def error(self, number: signal.Signals) -> InterruptedRunError:
        """Returns the error by which a signal ends the main thread."""
        return InterruptedRunError(number, resumable=self.resumable)


class Interruption:
    """Turns the first signal into `InterruptedRunError`; while deferred, only remembers it.

    While deferred, as in the training loop, the second signal raises. A process that still runs
    when the grace period after the first signal is over, or 2 seconds after the second, is ended by
    a thread with the signal's exit code, because Python handles no signal while an operation of
    TensorFlow runs.

    Nested interruptions share signals and grace period.

    Args:
      grace_seconds: how long after the first signal the process ends at the latest.
      further: signals that are handled like SIGINT and SIGTERM, but never count as a second one.
      keeps_process: never ends the process, as a notebook's has more to lose than the run.
    """

    _innermost: ClassVar[Interruption | None] = None

    def __init__(
        self,
        grace_seconds: float = GRACE_SECONDS,
        further: Sequence[signal.Signals] = (),
        *,
        keeps_process: bool = False,
    ) -> None:
        self._grace = grace_seconds
        self._state = _Received(further=tuple(further), keeps_process=keeps_process)
        self._in_loop = False
        self._listener: Callable[[], None] | None = None
        self._writer = -1

    def received(self) -> bool:
        """Whether the main thread has handled a signal."""
        return self._state.received is not None

    def promise_resume(self) -> None:
        """Has messages say, from now on, that the same command continues the run."""
        self._state.resumable = True

    @staticmethod
    def end_resumable() -> None:
        """Ends what this process does as SIGTERM would, if the same command continues it."""
        innermost = Interruption._innermost
        if innermost is not None and innermost._state.resumable:
            os.kill(os.getpid(), signal.SIGTERM)

    def finish(self) -> None:
        """Ignores signals until the process ends, because the work of the command is done."""
        self._state.finished = True

    def has_come(self, number: signal.Signals) -> bool:
        """Whether the main thread has handled this signal, be it the first one or not."""
        return number in self._state.all

    def noticed(self) -> bool:
        """Whether any thread has received a signal."""
        return self._state.received is not None or self._state.deadline is not None

    def remaining(self) -> float | None:
        """Returns the remaining seconds of the grace period; None before a signal."""
        if self._state.received is None:
            return None
        # The thread may not have seen the signal yet.
        deadline = self._state.deadline
        return self._grace if deadline is None else max(0.0, deadline - time.monotonic())

    def check(self) -> None:
        """Raises `InterruptedRunError` if a signal has come."""
        if self._state.received is not None:
            raise self._state.error(self._state.received)

    @staticmethod
    def check_swallowed() -> None:
        """Raises `InterruptedRunError` again if it was raised and other code has swallowed it.

        Keras and AutoGraph swallow errors as they build a graph, which then computes other values.
        """
        innermost = Interruption._innermost
        if innermost is not None and innermost._state.raised:
            innermost.check()

    @contextmanager
    def handled(self) -> Iterator[Interruption]:
        """Handles signals inside the block, in the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        outer = Interruption._innermost
        if outer is not None:
            self._state = outer._state
        signals = (*SIGNALS, *self._state.further)
        # Standard error may be redirected for a time, as during a noisy import.
        terminal = os.dup(2)
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        watcher = threading.Thread(target=self._watch, args=(reader, terminal), daemon=True)
        watcher.start()
        # Written at once by the system, where the handlers wait for the main thread.
        woken_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        handlers = [signal.signal(number, self._handle) for number in signals]
        Interruption._innermost = self
        try:
            yield self
        except InterruptedRunError:
            raise
        except Exception as error:
            if self._state.received is None or not self._state.raised:
                raise
            # The interrupted code has replaced the error, as a bare `except` of Keras's does.
            raise self._state.error(self._state.received) from error
        finally:
            Interruption._innermost = outer
            for number, handler in zip(signals, handlers, strict=True):
                signal.signal(number, signal.SIG_IGN if self._state.finished else handler)
            signal.set_wakeup_fd(woken_before)
            os.close(self._writer)
            watcher.join()
            os.close(reader)
            os.close(terminal)
            if outer is not None:
                os.write(outer._writer, _WAKE_UP)  # Its thread has no deadline yet.

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Only remembers the first signal inside the block."""
        with self._deferring(True):
            yield

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raises at once inside the block, which is in a deferred one, also for an earlier signal.

        Raises:
          InterruptedRunError: a signal has come.
        """
        with self._deferring(False):
            self.check()
            yield

    @contextmanager
    def notifying(self, listener: Callable[[], None]) -> Iterator[None]:
        """Calls `listener` at the first signal inside the block, before that raises."""
        before, self._listener = self._listener, listener
        try:
            yield
        finally:
            self._listener = before

    @contextmanager
    def _deferring(self, deferring: bool) -> Iterator[None]:
        before, self._in_loop = self._in_loop, deferring
        try:
            yield
        finally:
            self._in_loop = before

    def _handle(self, number: int, frame: FrameType | None) -> None:
        state = self._state
        if state.finished:
            return
        first = state.received is None
        state.all.add(signal.Signals(number))
        if not first and number not in SIGNALS:
            return
        state.received = signal.Signals(number)
        if first and self._listener is not None:
            self._listener()
        if not (first and self._in_loop):
            state.raised = True
            raise state.error(state.received)

    def _watch(self, reader: int, terminal: int) -> None:
        """Ends the process when its time is over; returns when the pipe is closed."""
        state = self._state
        while True:
            ends = None if state.finished or state.keeps_process else state.deadline
            timeout = None if ends is None else max(0.0, ends - time.monotonic())
            if not select.select([reader], [], [], timeout)[0]:
                error = InterruptedRunError(state.last, state.cause, resumable=state.resumable)
                end_at_once(error, terminal)
            numbers = os.read(reader, 64)
            if not numbers:
                return
            for number in numbers:
                if number in SIGNALS or (number in state.further and state.deadline is None):
                    self._count_down(signal.Signals(number))

    def _count_down(self, received: signal.Signals) -> None:
        state = self._state
        again = state.deadline is not None
        ends = time.monotonic() + (_AT_ONCE_SECONDS if again else self._grace)
        state.last = received
        state.cause = (
            "a second signal does not wait for the step, which is not saved"
            if again
            else f"it could not be saved in session.grace_seconds={self._grace:g}"
        )
        state.deadline = min(ends, state.deadline or ends)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Ends the process at once at a signal inside the block, in which no run has begun."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminal = os.dup(2)
    handlers = [signal.signal(watched, _ender(terminal)) for watched in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, handlers, strict=True):
            if signal.getsignal(number) is not signal.SIG_IGN:  # As `finish` leaves it.
                signal.signal(number, handler)
        os.close(terminal)


def _ender(terminal: int) -> Callable[[int, FrameType | None], NoReturn]:
    def end(number: int, frame: FrameType | None) -> NoReturn:
        end_at_once(InterruptedRunError(signal.Signals(number)), terminal)

    return end


def end_at_once(error: InterruptedRunError, terminal: int) -> NoReturn:
    """Reports an error to a file descriptor, and ends the process without cleaning up."""
    try:
        # Not print: the main thread may hold the stream's lock.
        os.write(terminal, f"runner: {error}\n".encode())
    finally:  # Even if the terminal is gone.
        os._exit(error.exit_code)
