"""Takes jobs of an interrupted sweep that still wait out of Slurm's queue."""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Collection
from pathlib import Path

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
