"""Attempts whose sweeping process has gone, while their own processes may live on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runner.file_lock import is_held
from runner.sweeps.attempt import Attempt, AttemptFile, TrialStatus

_ENDED = (TrialStatus.FINISHED, TrialStatus.PRUNED, TrialStatus.FAILED, TrialStatus.SKIPPED)


def end_of(file: AttemptFile, say: Callable[[str], object]) -> Attempt:
    """Returns what became of an attempt, which is not started any more where it waits.

    A process that is still at it is waited for.

    Args:
      file: the attempt's.
      say: is told what is waited for.
    """
    attempt = file.read()
    if attempt.status in _ENDED:
        return attempt
    if is_held(Path(file.lock.lock_file)):
        say(f"trial {attempt.trial} is still under way since before; waiting for that")
    return file.settle()
