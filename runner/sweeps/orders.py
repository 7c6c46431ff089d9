"""Ends a trial that the sweeping process, on whatever host, calls off."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from runner.interruption import Interruption
from runner.sweeps.attempt import Attempt, AttemptFile, this_process

_LOOK_SECONDS = 0.5


@contextmanager
def heeding_orders(
    file: AttemptFile, attempt: Attempt, interruption: Interruption
) -> Iterator[None]:
    """Ends what is inside as a signal would, once the sweeping process calls the attempt off.

    That process may be on another host, and where both have a terminal in common, a signal has
    come already, and a second one would not wait for the last step to be saved.
    """
    if attempt.sweeper == this_process():
        yield
        return
    file.await_orders()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK_SECONDS):
            if file.called_off():
                if not interruption.noticed():
                    os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
