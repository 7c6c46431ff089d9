"""Hydra's launchers, as far as a sweep treats them differently, by their classes.

Also here is what an attempt in a job of submitit's needs to know of Slurm.
"""

from __future__ import annotations

import glob
import importlib
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher

from runner.errors import ConfigError, Problem

SERIAL = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
JOBLIB = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
SUBMITIT = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher"
SLURM = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"
RAY = "hydra_plugins.runner_launchers.ray.RayLauncher"

# Launcher -> the extra that installs it.
_EXTRAS = {JOBLIB: "joblib", SUBMITIT: "slurm", SLURM: "slurm"}

_SUBMITTED = "_submitted.pkl"
_EXECUTOR = "SUBMITIT_EXECUTOR"


class LauncherKind:
    """The launcher that `hydra.launcher` configures, and how it treats trials."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._target = str(config.get("_target_", ""))

    @property
    def is_local(self) -> bool:
        """Whether trials certainly see the files that this process sees."""
        if self._target == RAY:
            return (self._config.get("init") or {}).get("address") is None
        return self._target in (SERIAL, JOBLIB, SUBMITIT)

    @property
    def crashes_together(self) -> bool:
        """Whether the death of one trial's process may end other trials."""
        return self._target not in (SUBMITIT, SLURM, RAY)

    @property
    def one_by_one(self) -> bool:
        """Whether trials run one after the other in this process."""
        return self._target == SERIAL

    def require_installed(self) -> None:
        """Raises ConfigError if the launcher's plugin is not installed."""
        classes = Plugins.instance().class_name_to_class
        if self._target in classes:
            return
        extra = _EXTRAS.get(self._target)
        raise ConfigError(
            Problem(
                f"hydra.launcher._target_ is {self._target!r}",
                "no installed plugin of Hydra holds it",
                f'pip install "runner[{extra}]"' if extra else "install its package",
                tuple(name for name, plugin in classes.items() if issubclass(plugin, Launcher)),
            )
        )

    def end_processes(self) -> None:
        """Ends joblib's processes, which would otherwise wait for further jobs for minutes."""
        if self._target == JOBLIB:
            from joblib.externals.loky import get_reusable_executor

            get_reusable_executor().shutdown()

    def cancel_queued(self) -> None:
        """Cancels the sweep's jobs that wait in Slurm's queue; running ones save their last step.

        Hydra's launcher does not expose its jobs, but submitit names a file in their folder after
        each. A job that is not cancelled does nothing when its turn comes.
        """
        if self._target != SLURM:
            return
        folder = re.sub("%[jAat]", "*", glob.escape(str(self._config.submitit_folder)))
        files = sorted(glob.glob(f"{folder}/*{_SUBMITTED}"))
        jobs = [Path(file).name.removesuffix(_SUBMITTED) for file in files]
        if jobs:
            subprocess.run(["scancel", "--quiet", "--state=PENDING", *jobs], check=False)


def requeue_signals(environment: Mapping[str, str]) -> tuple[signal.Signals, ...]:
    """Returns the signal at which submitit requeues this job, empty outside its jobs.

    Slurm sends it some time before the job's time limit.
    """
    if _EXECUTOR not in environment:
        return ()
    number = signal.Signals[f"SIG{environment.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}"]
    # A child of such a job inherits the environment, but not the handler.
    return (number,) if callable(signal.getsignal(number)) else ()


def may_be_requeued(environment: Mapping[str, str]) -> bool:
    """Whether Slurm itself may start this job again, as after a preemption."""
    return environment.get(_EXECUTOR) == "slurm"


def require_extra(module: str, setting: str) -> None:
    """Checks that a module can be imported, which the extra of its name installs.

    Raises:
      ConfigError: it cannot.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            Problem(
                f"{setting} needs {module.capitalize()}",
                str(error),
                f'pip install "runner[{module}]", or in a checkout pip install -e ".[{module}]"',
            )
        ) from error
