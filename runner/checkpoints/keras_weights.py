"""Keras 3 `.weights.h5` files, and HDF5 files of datasets in general."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import h5py
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import digest, hdf5, keras_names
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    TensorSpec,
    require_names,
    unreadable,
)

ITERATIONS = "optimizer/vars/0"


class KerasWeightsReader(CheckpointReader):
    """Reads the HDF5 file at `path`; a tensor's name is the path of its dataset.

    The paths by which Keras knows the variables are aliases, where the file leaves no doubt.
    """

    format = "Keras weights"

    def __init__(self, path: str) -> None:
        self.path = path

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        with self.opened() as file:
            tensors, layers = contents(file)
            step = step_of(file, tensors)
        return CheckpointSpec(
            self.path,
            step,
            tensors,
            self.format,
            self.digest(),
            keras_names.aliases(tensors, layers),
        )

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        with self.opened() as file:
            found = hdf5.datasets(file)
            require_names(self.path, names, found)
            for name in names:
                yield name, hdf5.value(self.path, found[name])

    @contextlib.contextmanager
    def opened(self) -> Iterator[h5py.File]:
        """Opens the file."""
        with hdf5.opened(self.path, self.path, "a Keras weights file") as file:
            yield file

    def digest(self) -> str:
        """Returns the digest of the content."""
        try:
            return digest.of_file(self.path)
        except OSError as error:
            raise unreadable(self.path, "a Keras weights file", error) from error


def contents(file: h5py.File) -> tuple[dict[str, TensorSpec], dict[str, str]]:
    """Returns the tensors, and group -> name of every layer that says its name."""
    found = hdf5.datasets(file)
    tensors = {name: hdf5.tensor_spec(name, found[name]) for name in sorted(found)}
    layers: dict[str, str] = {}

    def note(path: str, entry: h5py.Group | h5py.Dataset) -> None:
        if path.rpartition("/")[2] == "vars" and isinstance(entry.attrs.get("name"), str):
            layers[path.removesuffix("vars").rstrip("/")] = entry.attrs["name"]

    file.visititems(note)
    return tensors, layers


def step_of(file: h5py.File, tensors: Mapping[str, TensorSpec]) -> int | None:
    """Returns the number of steps that the optimizer saved beside the weights has made."""
    spec = tensors.get(ITERATIONS)
    if spec is None or spec.shape != () or "int" not in spec.dtype:
        return None
    return int(file[ITERATIONS][()])
