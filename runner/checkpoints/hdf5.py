"""Tries HDF5 files in a process of its own: damaged ones can hang or crash the library."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import h5py
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.reader import TensorSpec, unreadable
from runner.errors import CheckpointError, Problem

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


# A damaged file makes the HDF5 library and h5py raise any of these.
READ_ERRORS = (
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    NotImplementedError,
)


@contextlib.contextmanager
def opened(path: str, source: str | BinaryIO, what: str) -> Iterator[h5py.File]:
    """Opens an HDF5 file read-only and explains what the library raises while it is open.

    Args:
      path: how an error calls the file.
      source: the file on this machine, or an open, seekable file whose bytes are known to be
        intact.
      what: what the file should be, e.g. `a Keras weights file`.

    Raises:
      CheckpointError: when it is damaged.
    """
    try:
        if isinstance(source, str):
            require_harmless(source, what)
        with h5py.File(source, "r") as file:
            yield file
    except READ_ERRORS as error:
        raise unreadable(path, what, error) from error


def datasets(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """Returns path -> dataset of all that is in the group, without following links."""
    found = {}

    def note(name: str, entry: h5py.Group | h5py.Dataset) -> None:
        if isinstance(entry, h5py.Dataset):
            found[name] = entry

    group.visititems(note)
    return found


def tensor_spec(name: str, dataset: h5py.Dataset) -> TensorSpec:
    """Returns the spec of a dataset under the given name."""
    shape = tuple(int(size) for size in dataset.shape or ())
    return TensorSpec(name, shape, _dtype(dataset))


def value(path: str, dataset: h5py.Dataset) -> NDArray[np.generic]:
    """Reads a dataset.

    HDF5 keeps no checksums here, so a flipped byte is seen only by the file's digest.

    Raises:
      CheckpointError: when its values are in another file or were never written.
    """
    if dataset.external or dataset.is_virtual:
        raise CheckpointError(
            Problem(
                f"{path}: {dataset.name} keeps its values in another file",
                "a checkpoint is complete in itself",
                "save the weights again with Keras",
            )
        )
    if dataset.size and not dataset.id.get_storage_size():
        raise unreadable(path, "an HDF5 file", f"the values of {dataset.name} were never written")
    read = np.asarray(dataset[()])
    # Keras writes bfloat16 as two opaque bytes with a note.
    if _dtype(dataset) == "bfloat16" and read.dtype != ml_dtypes.bfloat16:
        return read.view(ml_dtypes.bfloat16)
    return read


def root_name(config: object) -> str | None:
    """Returns the model's name from a `model_config` attribute; None when there is none."""
    if not isinstance(config, str | bytes):
        return None
    try:
        loaded = json.loads(config)["config"]
    except (ValueError, KeyError, TypeError):
        # The configuration only shortens names; the weights are complete without it.
        return None
    name = loaded.get("name") if isinstance(loaded, Mapping) else None
    return name if isinstance(name, str) else None


def texts(attributes: Mapping[str, Any], name: str) -> list[str]:
    """Returns a list of texts that Keras stored in an attribute, or in parts in several."""
    if name in attributes:
        return [_text(each) for each in attributes[name]]
    parts = itertools.takewhile(lambda part: part in attributes, _numbered(name))
    return [_text(each) for part in parts for each in attributes[part]]


def _numbered(name: str) -> Iterator[str]:
    return (f"{name}{number}" for number in itertools.count())


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _dtype(dataset: h5py.Dataset) -> str:
    if _text(dataset.attrs.get("dtype", "")) == "bfloat16":
        return "bfloat16"
    return "string" if dataset.dtype.kind in "OSU" else str(dataset.dtype.name)
