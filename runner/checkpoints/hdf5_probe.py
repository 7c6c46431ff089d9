"""Tries HDF5 files in a process of its own: damaged ones can hang or crash the library."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys

from runner.checkpoints import files
from runner.checkpoints.reader import unreadable

# Far more than listing any undamaged file takes; damaged ones have run for ever.
CPU_SECONDS = 30
_MODULE = "runner.checkpoints.hdf5_trial"


def require_harmless(path: str, what: str) -> None:
    """Checks that the HDF5 library gets through a file's metadata and its compressed datasets.

    A file that has not changed since is not tried again in this process.

    Raises:
      CheckpointError: when the library crashes, or is still busy after 30 s of CPU time.
      OSError: when the file cannot be read.
    """
    died_of = _signal(path, files.stamp(path))
    if died_of:
        reason = "ran without end" if died_of == signal.SIGXCPU else f"crashed with {died_of.name}"
        raise unreadable(path, what, f"it is damaged such that the HDF5 library {reason} on it")


@functools.lru_cache(maxsize=256)
def _signal(path: str, stamp: str) -> signal.Signals | None:
    """Returns the signal that ends a process that reads the file; None when none does."""
    done = subprocess.run(
        [sys.executable, "-m", _MODULE, path, str(CPU_SECONDS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode > 0:
        raise RuntimeError(f"{_MODULE} failed:\n{done.stderr}")
    return signal.Signals(-done.returncode) if done.returncode else None
