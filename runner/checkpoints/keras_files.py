"""Keras 3 `.weights.h5` files, and HDF5 files of datasets in general."""

from __future__ import annotations

import contextlib
import functools
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, cast

import h5py
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import digest, files, hdf5, keras_names
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    TensorSpec,
    require_names,
    unreadable,
)
from runner.checkpoints.recognition import ZIP_ERRORS, checksums, require_intact

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


MEMBER = "model.weights.h5"
_ARCHIVE = "a .keras archive"


class KerasArchiveReader(KerasWeightsReader):
    """Reads the weights in the archive at `path` where they lie; nothing is unpacked.

    Before anything is read, all weights are compared with the CRC-32 in the archive: the HDF5
    library must not be given a damaged file.
    """

    format = "Keras archive"

    @contextlib.contextmanager
    def opened(self) -> Iterator[h5py.File]:
        """Opens the weights file in the archive."""
        self._require_intact()
        try:
            with (
                zipfile.ZipFile(self.path) as archive,
                archive.open(MEMBER) as member,
                hdf5.opened(self.path, cast(BinaryIO, member), _ARCHIVE) as file,
            ):
                yield file
        except ZIP_ERRORS as error:
            raise unreadable(self.path, _ARCHIVE, error) from error

    def digest(self) -> str:
        """Returns the digest of the archive's checksums."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                return digest.of_parts(checksums(archive))
        except ZIP_ERRORS as error:
            raise unreadable(self.path, _ARCHIVE, error) from error

    def _require_intact(self) -> None:
        try:
            _require_intact(self.path, files.stamp(self.path))
        except ZIP_ERRORS as error:
            raise unreadable(self.path, _ARCHIVE, error) from error


@functools.lru_cache(maxsize=256)
def _require_intact(path: str, stamp: str) -> None:
    """Checks the weights; a file that has not changed since is not read again."""
    with zipfile.ZipFile(path) as archive:
        require_intact(archive, MEMBER)


WEIGHTS, OPTIMIZER = "model_weights", "optimizer_weights"
_MODEL_FILE = "a Keras .h5 file"
_ITERATIONS = ("iter", "iteration", "iterations")


class KerasH5Reader(CheckpointReader):
    """Reads the HDF5 file at `path`, in which every layer's group lists its weights by name.

    Tensors have the names in those lists, without `:0`; weights of one name in two layers are told
    apart by the layer. Without the model's own name, by which Keras 3 starts, they have an alias.
    """

    format = "Keras HDF5"

    def __init__(self, path: str) -> None:
        self.path = path

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        with hdf5.opened(self.path, self.path, _MODEL_FILE) as file:
            found = weights(file)
            tensors = {name: hdf5.tensor_spec(name, found[name]) for name in sorted(found)}
            step = _step(found, tensors)
            root = hdf5.root_name(file.attrs.get("model_config"))
        try:
            content = digest.of_file(self.path)
        except OSError as error:
            raise unreadable(self.path, _MODEL_FILE, error) from error
        return CheckpointSpec(
            self.path, step, tensors, self.format, content, _without_root(tensors, root)
        )

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        with hdf5.opened(self.path, self.path, _MODEL_FILE) as file:
            found = weights(file)
            require_names(self.path, names, found)
            for name in names:
                yield name, hdf5.value(self.path, found[name])


def lists_weights(path: str) -> bool:
    """Whether the HDF5 file at `path` has the layout that `KerasH5Reader` reads.

    Raises:
      CheckpointError: when it is damaged.
    """
    with hdf5.opened(path, path, _MODEL_FILE) as file:
        return is_listed(file)


def is_listed(file: h5py.File) -> bool:
    """Whether layers list their weights by name."""
    return WEIGHTS in file or "layer_names" in file.attrs or "layer_names0" in file.attrs


def weights(file: h5py.File) -> dict[str, h5py.Dataset]:
    """Returns tensor name -> dataset.

    Raises:
      KeyError: when a listed weight is not there.
    """
    layers = file.get(WEIGHTS, file)
    entries = [
        (layer, weight, layers[layer][weight])
        for layer in layers
        for weight in hdf5.texts(layers[layer].attrs, "weight_names")
    ]
    count = Counter(weight for _, weight, _ in entries)
    found = {
        _tensor_name(weight if count[weight] == 1 else f"{layer}/{weight}"): dataset
        for layer, weight, dataset in entries
    }
    if OPTIMIZER in file:
        group = file[OPTIMIZER]
        for weight in hdf5.texts(group.attrs, "weight_names"):
            found[f"{OPTIMIZER}/{_tensor_name(weight)}"] = group[weight]
    for name, dataset in found.items():
        if not isinstance(dataset, h5py.Dataset):
            raise ValueError(f"{name} is listed as a weight and is no dataset")
    return found


def _tensor_name(weight: str) -> str:
    return weight.removesuffix(":0")


def _step(found: Mapping[str, h5py.Dataset], tensors: Mapping[str, TensorSpec]) -> int | None:
    for name, spec in tensors.items():
        of_optimizer = name.startswith(f"{OPTIMIZER}/") and name.rpartition("/")[2] in _ITERATIONS
        if of_optimizer and spec.shape == () and "int" in spec.dtype:
            return int(found[name][()])
    return None


def _without_root(tensors: Mapping[str, TensorSpec], root: str | None) -> dict[str, str]:
    shorter = {
        name.removeprefix(f"{root}/"): name for name in tensors if name.startswith(f"{root}/")
    }
    return {alias: name for alias, name in shorter.items() if alias not in tensors}
