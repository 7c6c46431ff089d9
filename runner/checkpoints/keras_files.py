"""Keras's files: `.keras` archives, `.weights.h5` of Keras 3, `.h5` of Keras 2 and 3; other HDF5.

These HDF5 files have no checksums: only the digest of a pinned file detects a flipped byte. Other
damage nearly always makes h5py raise: of 900 files damaged at random, 2 made the library loop for
ever, which is too rare to try every file in a separate process first (0.4 s a file).
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import h5py
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import archives, files
from runner.checkpoints.keras_names import keras_paths, layers_in_order
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    FileReader,
    TensorSpec,
    explained,
    is_count,
    read_array,
    unreadable,
)

MEMBER, _CONFIG = "model.weights.h5", "config.json"
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_CHUNK = 4 << 20
# Listing so many takes 10 seconds.
_MAX_DEPTH, _MAX_ENTRIES = 64, 50_000
_HDF5 = "an HDF5 file"
# Attributes of NetCDF by which values are multiplied, shifted or masked when they are read.
_PACKED = frozenset(("scale_factor", "add_offset", "_FillValue", "missing_value"))
_WEIGHTS, _OPTIMIZER = "model_weights", "optimizer_weights"
# Where a dataset's values begin in the file, their shape and type.
_Place: TypeAlias = tuple[int, tuple[int, ...], np.dtype[Any]]
_KERAS3_ITERATIONS, _ITERATIONS = "optimizer/vars/0", ("iter", "iteration", "iterations")


class KerasWeightsReader(FileReader):
    """Reads a `.weights.h5` file, or any other HDF5 file: the paths of datasets are the names.

    The paths by which Keras knows the variables are aliases, if the file leaves no doubt.
    """

    format, what = "Keras weights", "a Keras weights file"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._stamp, self._places = "", dict[str, _Place]()

    @contextlib.contextmanager
    def file(self) -> Iterator[h5py.File]:
        """Opens the HDF5 file."""
        with h5py.File(self.path, "r") as file:
            yield file

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Mapping[str, h5py.Dataset]]:
        """Opens the file and yields tensor name -> dataset."""
        stamp = files.stamp(self.path)
        with self.file() as file:
            datasets = self.datasets(file)
            declared = sum(dataset.nbytes for dataset in datasets.values())
            if not datasets:
                raise ValueError("it holds no datasets; links to other files are not followed")
            if excess := archives.implausible(declared, files.size(self.path)):
                raise ValueError(excess)
            if file.driver != "fileobj":
                places = {name: _place(dataset) for name, dataset in datasets.items()}
                self._places = {name: place for name, place in places.items() if place}
                self._stamp = stamp  # Last: another thread may read now.
            yield datasets

    def tensor_spec(self, name: str, entry: h5py.Dataset) -> TensorSpec:
        """See `FileReader.tensor_spec`."""
        return TensorSpec(name, tuple(int(size) for size in entry.shape or ()), _dtype(entry))

    def value(self, name: str, entry: h5py.Dataset) -> NDArray[np.generic]:
        """See `FileReader.value`; refuses values in another file and values never written."""
        return _value(self.path, entry)

    def step_name(self, tensors: Mapping[str, TensorSpec]) -> str | None:
        """Returns the tensor in which the optimizer counts its steps."""
        return _KERAS3_ITERATIONS if is_count(tensors.get(_KERAS3_ITERATIONS)) else None

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        spec = super().spec()
        with explained(self.path, self.what), self.file() as file:
            layers = _layers(file)
            aliases = self.aliases(file, spec.tensors, layers)
            spec = replace(spec, aliases=aliases, layers=layers)
            return replace(spec, order=self.order(file, spec))

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`.

        Values in one piece are read where they were when the file was last opened, if it is still
        the same: HDF5 opens every dataset, which takes 5 times as long as reading a ResNet-50.
        """
        with explained(self.path, self.what):
            is_same = files.stamp(self.path) == self._stamp
        if not (is_same and self._places.keys() >= {*names}):
            yield from super().read(names)
            return
        with explained(self.path, self.what), open(self.path, "rb") as file:
            for name in names:
                start, shape, dtype = self._places[name]
                yield name, read_array(file, shape, dtype, start=start)

    def datasets(self, file: h5py.File) -> Mapping[str, h5py.Dataset]:
        """Returns tensor name -> dataset, without following links."""
        return {path: file[path] for path, is_dataset in _paths(file).items() if is_dataset}

    def aliases(
        self, file: h5py.File, tensors: Mapping[str, TensorSpec], layers: Mapping[str, str]
    ) -> dict[str, str]:
        """Returns other names of some tensors -> tensor name."""
        return keras_paths(tensors, layers)

    def order(
        self, file: h5py.File, spec: CheckpointSpec
    ) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Returns the positions of variables, see `CheckpointSpec.order`."""
        return {}


class KerasArchiveReader(KerasWeightsReader):
    """Reads the weights in a `.keras` archive without unpacking it.

    All weights are first compared with the CRC-32 in the archive, so that the HDF5 library never
    sees damaged bytes.
    """

    format, what = "Keras archive", "a .keras archive"
    digest = staticmethod(archives.digest_of_archive)

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        spec = super().spec()
        with explained(self.path, self.what), archives.opened_archive(self.path) as archive:
            held = archive.namelist()
            content = archive.read(_CONFIG) if _CONFIG in held else b""
        return replace(spec, trained=layers_in_order(content))

    @contextlib.contextmanager
    def file(self) -> Iterator[h5py.File]:
        """Opens the HDF5 file in the archive."""
        _require_intact(self.path, files.stamp(self.path))
        with _opened_member(self.path) as member, h5py.File(member, "r") as file:
            yield file


@functools.lru_cache(maxsize=256)
def _require_intact(path: str, stamp: str) -> None:
    """Checks the weights, once for each state of the file."""
    with archives.opened_archive(path) as archive, archive.open(MEMBER) as member:
        while member.read(_CHUNK):
            pass  # At the end zipfile compares the CRC-32.


@contextlib.contextmanager
def _opened_member(path: str) -> Iterator[Any]:
    """Opens the weights in an archive; in place if they are uncompressed, as Keras stores them.

    HDF5 seeks back and forth, and `zipfile` then reads the member from the beginning each time: a
    warm start from 100 MB in three files took 1.9 times as long as `load_weights` through
    `zipfile`, and 0.4 times as long in place.
    """
    with archives.opened_archive(path) as archive:
        entry = archive.getinfo(MEMBER)
        if entry.compress_type != zipfile.ZIP_STORED:
            with archive.open(MEMBER) as member:
                yield member
            return
    with _Member(path, entry) as file:
        yield file


class _Member(io.FileIO):
    """An uncompressed member of a zip archive as a file."""

    def __init__(self, path: str, entry: zipfile.ZipInfo) -> None:
        super().__init__(path)
        self._start = self._end = 0
        self._start = archives.stored_at(self, entry)
        self._end = self._start + entry.file_size
        self.seek(0)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See `io.IOBase.seek`."""
        base = {io.SEEK_SET: self._start, io.SEEK_CUR: super().tell(), io.SEEK_END: self._end}
        return super().seek(base[whence] + offset) - self._start

    def tell(self) -> int:
        """See `io.IOBase.tell`."""
        return super().tell() - self._start


class KerasH5Reader(KerasWeightsReader):
    """Reads a `.h5` file in which every layer's group lists its weights by name.

    Tensors have the listed names, without `:0`; the layer distinguishes weights of one name in two
    layers. Names that start with the model's name, as in Keras 3, have an alias without it.
    """

    format, what = "Keras HDF5", "a Keras .h5 file"

    def datasets(self, file: h5py.File) -> Mapping[str, h5py.Dataset]:
        """Returns tensor name -> dataset; a listed weight that is not there is a ValueError."""
        paths = _paths(file)
        prefix = f"{_WEIGHTS}/" if _WEIGHTS in paths else ""
        entries = [
            (layer, weight, _listed(file, paths, f"{path}/{weight}"))
            for path, is_dataset in paths.items()
            if not is_dataset and path.startswith(prefix)
            if "/" not in (layer := path.removeprefix(prefix))
            for weight in _strings(file[path].attrs, "weight_names")
        ]
        count = Counter(weight for _, weight, _ in entries)
        datasets = {
            (weight if count[weight] == 1 else f"{layer}/{weight}").removesuffix(":0"): dataset
            for layer, weight, dataset in entries
        }
        if _OPTIMIZER in paths:
            for weight in _strings(file[_OPTIMIZER].attrs, "weight_names"):
                dataset = _listed(file, paths, f"{_OPTIMIZER}/{weight}")
                datasets[f"{_OPTIMIZER}/{weight.removesuffix(':0')}"] = dataset
        return datasets

    def aliases(
        self, file: h5py.File, tensors: Mapping[str, TensorSpec], layers: Mapping[str, str]
    ) -> dict[str, str]:
        """Returns the names without the model's name -> tensor name."""
        model = f"{_model_name(file.attrs.get('model_config'))}/"
        shorter = {name.removeprefix(model): name for name in tensors if name.startswith(model)}
        return {alias: name for alias, name in shorter.items() if alias not in tensors}

    def order(
        self, file: h5py.File, spec: CheckpointSpec
    ) -> dict[str, tuple[str, tuple[int, ...]]]:
        """See `KerasWeightsReader.order`: layers are listed in the model's."""
        weights = file[_WEIGHTS] if _WEIGHTS in _paths(file) else file
        names = [
            name
            for layer in _strings(weights.attrs, "layer_names")
            if isinstance(weights.get(layer), h5py.Group)
            for weight in _strings(weights[layer].attrs, "weight_names")
            for name in (weight.removesuffix(":0"), f"{layer}/{weight}".removesuffix(":0"))
            if name in spec.tensors
        ]
        positions = {name: ("", (at,)) for at, name in enumerate(names)}
        others = {a: positions[name] for a, name in spec.aliases.items() if name in positions}
        return {**positions, **others}

    def step_name(self, tensors: Mapping[str, TensorSpec]) -> str | None:
        """Returns the tensor in which the optimizer counts its steps."""
        for name, spec in tensors.items():
            is_optimizer_weight = name.startswith(f"{_OPTIMIZER}/")
            if is_optimizer_weight and name.rpartition("/")[2] in _ITERATIONS and is_count(spec):
                return name
        return None


def open_hdf5(path: str) -> CheckpointReader:
    """Returns the reader for the layout of the HDF5 file at `path`.

    Raises:
      CheckpointError: when it is damaged.
    """
    with explained(path, KerasH5Reader.what), h5py.File(path, "r") as file:
        weights = file.get(_WEIGHTS, getlink=True)
        lists = (
            isinstance(weights, h5py.HardLink)
            or "layer_names" in file.attrs
            or "layer_names0" in file.attrs
        )
    return KerasH5Reader(path) if lists else KerasWeightsReader(path)


def _paths(group: h5py.Group) -> dict[str, bool]:
    """Returns path -> whether it is a dataset, of all in the group, without following links.

    An external link would show the values of any other file. `visititems` opens every object: 20 ms
    for ResNet-50, against 8.
    """
    paths: dict[str, bool] = {}

    def add(path: bytes, info: Any) -> None:
        if path.count(b"/") >= _MAX_DEPTH or len(paths) >= _MAX_ENTRIES:
            raise ValueError(
                f"it has more than {_MAX_ENTRIES:,} groups and datasets, or more than {_MAX_DEPTH} "
                "levels of groups"
            )
        paths[path.decode()] = info.type == h5py.h5o.TYPE_DATASET

    h5py.h5o.visit(group.id, add, info=True)
    return paths


def _listed(file: h5py.File, paths: Mapping[str, bool], path: str) -> h5py.Dataset:
    if not paths.get(path):
        raise ValueError(f"it lists {path}, which is not there, or a link to somewhere else")
    return file[path]


def _layers(file: h5py.File) -> dict[str, str]:
    """Returns group -> name of the layer, of the groups of a weights file that are layers."""
    return {
        path.removesuffix("vars").rstrip("/"): name
        for path in _paths(file)
        if path.rpartition("/")[2] == "vars"
        and isinstance(name := file[path].attrs.get("name"), str)
    }


def _place(dataset: h5py.Dataset) -> _Place | None:
    """Returns the place of values that the file holds in one piece and in NumPy's layout."""
    start, dtype = dataset.id.get_offset(), dataset.dtype
    if start is None or dtype.kind not in "biufc" or not dtype.isnative or dataset.attrs:
        return None
    as_in_memory = dataset.id.get_type().equal(h5py.h5t.py_create(dtype))
    return (start, dataset.shape, dtype) if as_in_memory else None


def _value(path: str, dataset: h5py.Dataset) -> NDArray[np.generic]:
    """Reads a dataset.

    Raises:
      CheckpointError: when its values are in another file or were never written.
    """
    if dataset.external or dataset.is_virtual:
        raise unreadable(path, _HDF5, f"{dataset.name} keeps its values in another file")
    if dataset.size and not dataset.id.get_storage_size():
        raise unreadable(path, _HDF5, f"the values of {dataset.name} were never written")
    if packed := _PACKED & {*dataset.attrs}:
        raise unreadable(path, _HDF5, f"{dataset.name} is packed: it has {', '.join(packed)}")
    if dataset.size and dataset.dtype.kind in "biufc":
        value = np.empty(dataset.shape, dataset.dtype)  # Owns its memory, unlike `dataset[()]`.
        dataset.read_direct(value)
    else:
        value = np.asarray(dataset[()])
    # Keras writes bfloat16 as two opaque bytes with an attribute.
    is_opaque = value.dtype.kind == "V" and value.dtype != _BFLOAT16
    return value.view(_BFLOAT16) if is_opaque and _dtype(dataset) == _BFLOAT16.name else value


def _dtype(dataset: h5py.Dataset) -> str:
    """Returns the type of a dataset's elements; Keras says in an attribute what NumPy lacks."""
    said, stored = _string(dataset.attrs.get("dtype", "")), dataset.dtype
    if said and stored.kind == "V" and stored.itemsize == _BFLOAT16.itemsize:
        return said if said == _BFLOAT16.name else f"{said} of Keras"
    if said and said != stored.name:
        return f"{stored.name} for {said} of Keras"
    return "string" if dataset.dtype.kind in "OSU" else str(dataset.dtype.name)


def _model_name(config: Any) -> str:
    """Returns the model's name from a `model_config` attribute; empty when it has none."""
    try:
        name = json.loads(config)["config"]["name"]
    except (ValueError, LookupError, TypeError):
        # The configuration only shortens names; the weights are complete without it.
        return ""
    return name if isinstance(name, str) else ""


def _strings(attributes: Mapping[str, Any], name: str) -> list[str]:
    """Returns a list of strings that Keras stored in one attribute, or in parts in several."""
    if name in attributes:
        return [_string(value) for value in attributes[name]]
    numbered = (f"{name}{number}" for number in itertools.count())
    parts = itertools.takewhile(lambda part: part in attributes, numbered)
    return [_string(value) for part in parts for value in attributes[part]]


def _string(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
