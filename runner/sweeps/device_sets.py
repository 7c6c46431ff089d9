"""GPUs of trials that run side by side: a set for each, which CUDA_VISIBLE_DEVICES names.

TensorFlow opens every GPU that its process sees and holds them until the process ends, so a
process takes one set before it imports TensorFlow, and keeps it. Ray and Slurm hand out GPUs
themselves; on this machine the sweep divides them, and processes lock what they take.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from runner.errors import ConfigError
from runner.sweeps.launchers import JOBLIB, RAY, SLURM, SUBMITIT
from runner.system.locks import LongWait

VISIBLE = "CUDA_VISIBLE_DEVICES"
_KEY = "sweep.devices_per_trial"
_NAME = re.compile(r"\d+|(GPU|MIG)-\S+")
# The driver's folder for each GPU, also in a container that lacks `nvidia-smi`.
_DRIVER = Path("/proc/driver/nvidia/gpus")
_POLL_SECONDS = 0.5


def visible_devices(environ: Mapping[str, str]) -> list[str]:
    """Returns the names of the GPUs that a process with this environment sees.

    Asks the driver instead of TensorFlow, which would open them.
    """
    if VISIBLE not in environ:
        return [str(number) for number in range(_installed())]
    names = [name.strip() for name in environ[VISIBLE].split(",")]
    # CUDA ignores an invalid name, such as -1, and all that follow it.
    invalid = (place for place, name in enumerate(names) if not _NAME.fullmatch(name))
    return names[: next(invalid, len(names))]


def _installed() -> int:
    with suppress(FileNotFoundError):
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
        if done.returncode == 0:  # The parts of a GPU that is divided by MIG are on indented lines.
            return sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    return len(list(_DRIVER.iterdir())) if _DRIVER.is_dir() else 0


@dataclass(frozen=True)
class TrialDevices:
    """The devices of a sweep's trials.

    Attributes:
      line: describes them; empty where trials share all.
      sets: the values of CUDA_VISIBLE_DEVICES, of which each process takes one; empty where it
        takes none.
      launcher: settings of `hydra.launcher` that they need.
    """

    line: str = ""
    sets: tuple[str, ...] = ()
    launcher: Mapping[str, Any] = field(default_factory=dict)


def trial_devices(count: int | None, launcher: Any, environ: Mapping[str, str]) -> TrialDevices:
    """Divides this machine's GPUs among trials, or has the launcher give each as many.

    Args:
      count: `sweep.devices_per_trial`.
      launcher: `hydra.launcher`.
      environ: of the trials' processes.

    Raises:
      ConfigError: the trials cannot have devices of their own with this launcher or on this
        machine.
    """
    if count is None:
        return TrialDevices()
    target = launcher["_target_"]
    if target == SLURM:
        line = f"devices: {count} for each trial, from Slurm"
        return TrialDevices(line, launcher={"gpus_per_node": count})
    if target == RAY and launcher["init"]["address"] is not None:
        line = f"devices: {count} for each trial, from Ray"
        return TrialDevices(line, launcher={"remote.num_gpus": count})
    if target not in (JOBLIB, SUBMITIT, RAY):
        raise _refused(
            count,
            f"hydra.launcher._target_ is {target}: trials run one after the other in one process, "
            "with all devices",
            "side by side they run with hydra/launcher=processes",
        )
    devices = visible_devices(environ)
    if len(devices) < count:
        shown = f"{VISIBLE}={environ[VISIBLE]}" if VISIBLE in environ else f"no {VISIBLE}"
        raise _refused(
            count,
            f"this machine shows {len(devices)} GPUs, by its driver and {shown}",
            f"leave it out, or name the GPUs, such as {VISIBLE}=0,1",
        )
    line = f"devices: {count} of {','.join(devices)} for each trial"
    if target == RAY:
        changes = {"remote.num_gpus": count, "init.num_gpus": len(devices)}
        return TrialDevices(f"{line}, from Ray", launcher=changes)
    return _divided(devices, count, launcher, line)


def _divided(devices: Sequence[str], count: int, launcher: Any, line: str) -> TrialDevices:
    """Divides devices into sets that processes take."""
    ends = range(count, len(devices) + 1, count)
    sets = tuple(",".join(devices[end - count : end]) for end in ends)
    changes, at_once = {}, len(sets)
    if launcher["_target_"] == JOBLIB:
        from joblib import effective_n_jobs

        changes["n_jobs"] = at_once = min(at_once, effective_n_jobs(launcher["n_jobs"]))
        if at_once == 1:
            raise _refused(
                count,
                f"{len(devices)} GPUs and hydra.launcher.n_jobs={launcher['n_jobs']} allow one "
                "trial at a time, which runs in the sweeping process, with all devices",
                "leave it out, or allow several trials at once",
            )
    return TrialDevices(f"{line}, {at_once} trials at a time", sets, changes)


def _refused(count: int, cause: str, remedy: str) -> ConfigError:
    return ConfigError.of(f"{_KEY} is {count}", cause, remedy)


_taken: dict[Path, tuple[str, ExitStack]] = {}


def take_devices(folder: Path, sets: Sequence[str]) -> str:
    """Takes one of the sets, once for the life of this process, and has CUDA see no other device.

    Waits while other processes hold all of them; the end of a process returns what it held.

    Args:
      folder: for the locks, the same for all processes of a sweep.
      sets: values of CUDA_VISIBLE_DEVICES.
    """
    wait = LongWait(f"a GPU of {', '.join(sets)}: other trials hold all of them")
    while folder not in _taken:
        for devices in sets:
            with suppress(Timeout), ExitStack() as stack:
                for device in devices.split(","):
                    file = folder / f"{socket.gethostname()}-{device}.lock"
                    stack.enter_context(FileLock(file).acquire(timeout=0))
                _taken[folder] = devices, stack.pop_all()
                break
        else:
            wait.poll()
            time.sleep(_POLL_SECONDS)
    # Each time, because Hydra restores the environment after each trial.
    os.environ[VISIBLE] = _taken[folder][0]
    return _taken[folder][0]
