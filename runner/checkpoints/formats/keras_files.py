"""Keras's files: `.keras` archives, `.weights.h5` of Keras 3, `.h5` of Keras 2 and 3; other HDF5.

These HDF5 files have no checksums: only the digest of a pinned file detects a flipped byte. Other
damage nearly always makes h5py raise: of 900 files damaged at random, 2 made the library loop for
ever, which is too rare to try every file in a separate process first (0.4 s a file).
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import archives, files
from runner.checkpoints.formats.hdf5 import (
    Place,
    dtype_of,
    paths_in,
    place_of,
    string,
    strings,
    value_of,
)
from runner.checkpoints.formats.keras_names import keras_paths, layer_names, layers_in_order
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    FileReader,
    TensorSpec,
    explained,
    is_count,
    read_array,
)

MEMBER, _CONFIG = "model.weights.h5", "config.json"
# That Keras may have appended to a name.
_NUMBERS = re.compile(r"_\d+(?=/|$)")
_CHUNK = 4 << 20
_WEIGHTS, _OPTIMIZER, _LAYERS = "model_weights", "optimizer_weights", "layer_names"
_KERAS3_ITERATIONS, _ITERATIONS = "optimizer/vars/0", ("iter", "iteration", "iterations")


class KerasWeightsReader(FileReader):
    """Reads a `.weights.h5` file, or any other HDF5 file: the paths of datasets are the names.

    The paths by which Keras knows the variables are aliases, if the file leaves no doubt.
    """

    format, what = "Keras weights", "a Keras weights file"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._stamp, self._places = "", dict[str, Place]()

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
                places = {name: place_of(dataset) for name, dataset in datasets.items()}
                self._places = {name: place for name, place in places.items() if place}
                self._stamp = stamp  # Last: another thread may read now.
            yield datasets

    def tensor_spec(self, name: str, entry: h5py.Dataset) -> TensorSpec:
        """See `FileReader.tensor_spec`."""
        return TensorSpec(name, tuple(int(size) for size in entry.shape or ()), dtype_of(entry))

    def value(self, name: str, entry: h5py.Dataset) -> NDArray[np.generic]:
        """See `FileReader.value`; refuses values in another file and values never written."""
        return value_of(self.path, entry)

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
        return {path: file[path] for path, is_dataset in paths_in(file).items() if is_dataset}

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
        paths = paths_in(file)
        prefix = f"{_WEIGHTS}/" if _WEIGHTS in paths else ""
        groups = (path.removeprefix(prefix) for path in paths if path.startswith(prefix))
        layers = dict.fromkeys(group for group in groups if "/" not in group)
        # The name of a layer may hold slashes.
        layers |= dict.fromkeys(strings((file[_WEIGHTS] if prefix else file).attrs, _LAYERS))
        entries = []
        for layer in layers:
            if (path := f"{prefix}{layer}") not in paths:
                raise ValueError(f"it lists the layer {layer}, which is not there")
            if not paths[path]:
                weights = strings(file[path].attrs, "weight_names")
                entries += [
                    (layer, name, _listed(file, paths, f"{path}/{name}")) for name in weights
                ]
        count = Counter(weight for _, weight, _ in entries)
        datasets = {
            (weight if count[weight] == 1 else f"{layer}/{weight}").removesuffix(":0"): dataset
            for layer, weight, dataset in entries
        }
        if _OPTIMIZER in paths:
            for weight in strings(file[_OPTIMIZER].attrs, "weight_names"):
                dataset = _listed(file, paths, f"{_OPTIMIZER}/{weight}")
                datasets[f"{_OPTIMIZER}/{weight.removesuffix(':0')}"] = dataset
        listed = {dataset.name.lstrip("/") for dataset in datasets.values()}
        for path, is_dataset in paths.items():
            if is_dataset and path not in listed:
                if (name := path.removesuffix(":0")) in datasets:
                    raise ValueError(f"two datasets are named {name}: {path} and a listed one")
                datasets[name] = file[path]
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
        """See `KerasWeightsReader.order`.

        Layers are listed in the model's order, but the weights of a model in the model are not: its
        frozen layers come last. The configuration has their order.
        """
        weights = file[_WEIGHTS] if _WEIGHTS in paths_in(file) else file
        ranks = {name: at for at, name in enumerate(layer_names(file.attrs.get("model_config")))}
        positions: dict[str, tuple[str, tuple[int, ...]]] = {}
        for at, layer in enumerate(strings(weights.attrs, _LAYERS)):
            group = weights.get(layer)
            listed = strings(group.attrs, "weight_names") if isinstance(group, h5py.Group) else []
            held = [
                name
                for weight in listed
                for name in (weight.removesuffix(":0"), f"{layer}/{weight}".removesuffix(":0"))
                if name in spec.tensors
            ]
            counted = Counter(_NUMBERS.sub("", name) for name in held)
            for name in held:
                ranked = [ranks[part] for part in name.split("/") if part in ranks]
                is_alone = counted[_NUMBERS.sub("", name)] == 1
                known = ("", (at, *ranked[-1:])) if is_alone or ranked else (name, ())
                positions[name] = known
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
        inner = file[_WEIGHTS] if isinstance(weights, h5py.HardLink) else file
        for attributes in (file.attrs, inner.attrs):
            _require_known_keras(attributes)
        lists = (
            isinstance(weights, h5py.HardLink)
            or "layer_names" in file.attrs
            or "layer_names0" in file.attrs
        )
    return KerasH5Reader(path) if lists else KerasWeightsReader(path)


def _listed(file: h5py.File, paths: Mapping[str, bool], path: str) -> h5py.Dataset:
    if not paths.get(path):
        raise ValueError(f"it lists {path}, which is not there, or a link to somewhere else")
    return file[path]


def _layers(file: h5py.File) -> dict[str, str]:
    """Returns group -> name of the layer, of the groups of a weights file that are layers."""
    return {
        path.removesuffix("vars").rstrip("/"): name
        for path in paths_in(file)
        if path.rpartition("/")[2] == "vars"
        and isinstance(name := file[path].attrs.get("name"), str)
    }


def _model_name(config: Any) -> str:
    """Returns the model's name from a `model_config` attribute; empty when it has none."""
    try:
        name = json.loads(config)["config"]["name"]
    except (ValueError, LookupError, TypeError):
        # The configuration only shortens names; the weights are complete without it.
        return ""
    return name if isinstance(name, str) else ""


def _require_known_keras(attributes: Mapping[str, Any]) -> None:
    """Checks which Keras wrote a file: Keras 1, Theano and CNTK have other layouts of kernels."""
    version = string(attributes.get("keras_version", ""))
    backend = string(attributes.get("backend", ""))
    if version.startswith(("0.", "1.")) or backend in ("theano", "cntk"):
        writer = f"Keras {version}".rstrip() + (f" with {backend}" if backend else "")
        raise ValueError(
            f"{writer} wrote it, whose kernels have other layouts; load it with Keras 2 and "
            "TensorFlow, and save it again"
        )
