"""What the process of a trial knows of the job of Slurm's, or of submitit's, that it is in."""

from __future__ import annotations

import glob
import logging
import re
import signal
from collections.abc import Collection, Mapping
from pathlib import Path

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


logger = logging.getLogger(__name__)

LAUNCHER = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"

_SUBMITTED = "_submitted.pkl"
# Place of Hydra's number of the job among the arguments that its launcher submits.
JOB_NUMBER = 2


def withdraw(folder: str, numbers: Collection[int]) -> list[str]:
    """Cancels the jobs of attempts that have not begun.

    Hydra's launcher keeps its jobs to itself; but what each was submitted with is in its folder.

    Args:
      folder: `hydra.launcher.submitit_folder`.
      numbers: of the attempts.

    Returns:
      Slurm's names of the jobs. Where one cannot be cancelled, that is logged: it does nothing
      when its turn comes.
    """
    import submitit  # An extra; whoever has launched these jobs has it.

    cancelled = []
    place = re.sub("%[jAat]", "*", glob.escape(str(folder)))
    for file in sorted(glob.glob(f"{place}/*{_SUBMITTED}")):
        name = Path(file).name.removesuffix(_SUBMITTED)
        try:
            job: submitit.SlurmJob[object] = submitit.SlurmJob(folder, name)
            if job.submission().args[JOB_NUMBER] in numbers:
                job.cancel(check=False)
                cancelled.append(name)
        except Exception as error:  # noqa: BLE001 - submitit's, and what unpickling raises
            logger.warning("The job %s cannot be taken out of the queue: %r", name, error)
    return cancelled
