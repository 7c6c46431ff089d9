"""What the process of a trial knows of the job of Slurm's, or of submitit's, that it is in."""

from __future__ import annotations

import signal
from collections.abc import Mapping

_EXECUTOR = "SUBMITIT_EXECUTOR"


def requeue_signals(environment: Mapping[str, str]) -> tuple[signal.Signals, ...]:
    """Returns the signal at which submitit has this job started again; none outside its jobs.

    Slurm sends it some time before the job's time is over.
    """
    if _EXECUTOR not in environment:
        return ()
    number = signal.Signals[f"SIG{environment.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}"]
    # A child of such a job inherits the environment, but not the handler.
    return (number,) if callable(signal.getsignal(number)) else ()


def may_be_requeued(environment: Mapping[str, str]) -> bool:
    """Whether Slurm itself may start this job again, as after a preemption."""
    return environment.get(_EXECUTOR) == "slurm"
