"""Keras's files: `.keras` archives, `.weights.h5` of Keras 3, `.h5` of Keras 2 and 3; other HDF5.

HDF5 keeps no checksums here: a flipped byte is found by the digest of a pinned file alone. Other
damage makes h5py raise, nearly always: of 900 files damaged at random, 2 made the library loop for
ever, which is too rare to try every file in a process of its own first (0.4 s a file).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import h5py
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files, keras_names
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    FileReader,
    TensorSpec,
    explained,
    require_names,
    unreadable,
)
from runner.errors import CheckpointError, Problem

MEMBER = "model.weights.h5"
_CHUNK = 4 << 20
_WEIGHTS, _OPTIMIZER = "model_weights", "optimizer_weights"
_KERAS3_ITERATIONS, _ITERATIONS = "optimizer/vars/0", ("iter", "iteration", "iterations")


class _Hdf5Reader(FileReader):
    """Reads the HDF5 file at `path`; subclasses name its datasets.

    Attributes:
      what: what the file should be, for errors.
    """

    format = what = ""

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        with self._opened() as file:
            found = self._datasets(file)
            tensors = {name: _spec(name, found[name]) for name in sorted(found)}
            name = self._step_name(tensors)
            step = None if name is None else int(found[name][()])
            aliases = self._aliases(file, tensors)
        return CheckpointSpec(self.path, step, tensors, self.format, self._digest(), aliases)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        with self._opened() as file:
            found = self._datasets(file)
            require_names(self.path, names, found)
            for name in names:
                yield name, _value(self.path, found[name])

    @contextlib.contextmanager
    def _opened(self) -> Iterator[h5py.File]:
        """Opens the file."""
        with explained(self.path, self.what), h5py.File(self.path, "r") as file:
            yield file

    def _digest(self) -> str:
        """Returns the digest of the content."""
        with explained(self.path, self.what):
            return files.digest_of_file(self.path)

    def _datasets(self, file: h5py.File) -> Mapping[str, h5py.Dataset]:
        """Returns tensor name -> dataset."""
        raise NotImplementedError

    def _aliases(self, file: h5py.File, tensors: Mapping[str, TensorSpec]) -> dict[str, str]:
        """Returns other names of some tensors -> tensor name."""
        raise NotImplementedError

    def _step_name(self, tensors: Mapping[str, TensorSpec]) -> str | None:
        """Returns the tensor in which the optimizer counts its steps."""
        raise NotImplementedError


class KerasWeightsReader(_Hdf5Reader):
    """Reads a `.weights.h5` file, or any other HDF5 file: the paths of datasets are the names.

    The paths by which Keras knows the variables are aliases, where the file leaves no doubt.
    """

    format, what = "Keras weights", "a Keras weights file"

    def _datasets(self, file: h5py.File) -> Mapping[str, h5py.Dataset]:
        """Returns path -> dataset; links are not followed."""
        return {path: each for path, each in _entries(file) if isinstance(each, h5py.Dataset)}

    def _aliases(self, file: h5py.File, tensors: Mapping[str, TensorSpec]) -> dict[str, str]:
        layers = {
            path.removesuffix("vars").rstrip("/"): name
            for path, each in _entries(file)
            if path.rpartition("/")[2] == "vars" and isinstance(name := each.attrs.get("name"), str)
        }
        return keras_names.aliases(tensors, layers)

    def _step_name(self, tensors: Mapping[str, TensorSpec]) -> str | None:
        return _KERAS3_ITERATIONS if _is_count(tensors.get(_KERAS3_ITERATIONS)) else None


class KerasArchiveReader(KerasWeightsReader):
    """Reads the weights in a `.keras` archive; nothing is unpacked.

    Before anything is read, all weights are compared with the CRC-32 in the archive, so that the
    HDF5 library does not see damaged bytes.
    """

    format, what = "Keras archive", "a .keras archive"

    @contextlib.contextmanager
    def _opened(self) -> Iterator[h5py.File]:
        """Opens the weights file in the archive."""
        with explained(self.path, self.what, *files.ZIP_ERRORS):
            _require_intact(self.path, files.stamp(self.path))
            with (
                zipfile.ZipFile(self.path) as archive,
                archive.open(MEMBER) as member,
                h5py.File(member, "r") as file,
            ):
                yield file

    def _digest(self) -> str:
        """Returns the digest of the archive's checksums."""
        errors = files.ZIP_ERRORS
        with explained(self.path, self.what, *errors), zipfile.ZipFile(self.path) as archive:
            return files.digest_of_parts(files.checksums(archive))


@functools.lru_cache(maxsize=256)
def _require_intact(path: str, stamp: str) -> None:
    """Checks the weights; a file that has not changed since is not read again."""
    with zipfile.ZipFile(path) as archive, archive.open(MEMBER) as member:
        while member.read(_CHUNK):
            pass  # At the end zipfile compares the CRC-32.


class KerasH5Reader(_Hdf5Reader):
    """Reads a `.h5` file in which every layer's group lists its weights by name.

    Tensors have the names in those lists, without `:0`; weights of one name in two layers are
    distinguished by the layer. Names that start with the model's, as in Keras 3, have an alias
    without it.
    """

    format, what = "Keras HDF5", "a Keras .h5 file"

    def _datasets(self, file: h5py.File) -> Mapping[str, h5py.Dataset]:
        """Returns tensor name -> dataset; a listed weight that is not there is a KeyError."""
        layers = file.get(_WEIGHTS, file)
        entries = [
            (layer, weight, layers[layer][weight])
            for layer in layers
            for weight in _strings(layers[layer].attrs, "weight_names")
        ]
        count = Counter(weight for _, weight, _ in entries)
        found = {
            (weight if count[weight] == 1 else f"{layer}/{weight}").removesuffix(":0"): dataset
            for layer, weight, dataset in entries
        }
        if _OPTIMIZER in file:
            group = file[_OPTIMIZER]
            for weight in _strings(group.attrs, "weight_names"):
                found[f"{_OPTIMIZER}/{weight.removesuffix(':0')}"] = group[weight]
        return found

    def _aliases(self, file: h5py.File, tensors: Mapping[str, TensorSpec]) -> dict[str, str]:
        model = f"{_model_name(file.attrs.get('model_config'))}/"
        shorter = {name.removeprefix(model): name for name in tensors if name.startswith(model)}
        return {alias: name for alias, name in shorter.items() if alias not in tensors}

    def _step_name(self, tensors: Mapping[str, TensorSpec]) -> str | None:
        for name, spec in tensors.items():
            of_optimizer = name.startswith(f"{_OPTIMIZER}/")
            if of_optimizer and name.rpartition("/")[2] in _ITERATIONS and _is_count(spec):
                return name
        return None


def open_hdf5(path: str) -> CheckpointReader:
    """Returns the reader for the layout of the HDF5 file at `path`.

    Raises:
      CheckpointError: when it is damaged.
    """
    with explained(path, KerasH5Reader.what), h5py.File(path, "r") as file:
        lists = _WEIGHTS in file or "layer_names" in file.attrs or "layer_names0" in file.attrs
    return KerasH5Reader(path) if lists else KerasWeightsReader(path)


def _entries(group: h5py.Group) -> list[tuple[str, h5py.Group | h5py.Dataset]]:
    """Returns (path, entry) of everything in the group, without following links."""
    found: list[tuple[str, h5py.Group | h5py.Dataset]] = []
    group.visititems(lambda path, entry: found.append((path, entry)))
    return found


def _spec(name: str, dataset: h5py.Dataset) -> TensorSpec:
    return TensorSpec(name, tuple(int(size) for size in dataset.shape or ()), _dtype(dataset))


def _value(path: str, dataset: h5py.Dataset) -> NDArray[np.generic]:
    """Reads a dataset.

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
    # Keras writes bfloat16 as two opaque bytes with an attribute.
    if _dtype(dataset) == "bfloat16" and read.dtype != ml_dtypes.bfloat16:
        return read.view(ml_dtypes.bfloat16)
    return read


def _dtype(dataset: h5py.Dataset) -> str:
    if _string(dataset.attrs.get("dtype", "")) == "bfloat16":
        return "bfloat16"
    return "string" if dataset.dtype.kind in "OSU" else str(dataset.dtype.name)


def _is_count(spec: TensorSpec | None) -> bool:
    return spec is not None and spec.shape == () and "int" in spec.dtype


def _model_name(config: object) -> str:
    """Returns the model's name from a `model_config` attribute; empty when it has none."""
    if not isinstance(config, str | bytes):
        return ""
    try:
        loaded = json.loads(config)["config"]
    except (ValueError, KeyError, TypeError):
        # The configuration only shortens names; the weights are complete without it.
        return ""
    name = loaded.get("name") if isinstance(loaded, Mapping) else None
    return name if isinstance(name, str) else ""


def _strings(attributes: Mapping[str, Any], name: str) -> list[str]:
    """Returns a list of strings that Keras stored in an attribute, or in parts in several."""
    if name in attributes:
        return [_string(each) for each in attributes[name]]
    numbered = (f"{name}{number}" for number in itertools.count())
    parts = itertools.takewhile(lambda part: part in attributes, numbered)
    return [_string(each) for part in parts for each in attributes[part]]


def _string(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
