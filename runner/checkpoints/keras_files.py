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
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import h5py
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    FileReader,
    TensorSpec,
    explained,
    is_count,
    unreadable,
)

MEMBER = "model.weights.h5"
_CHUNK = 4 << 20
_HDF5 = "an HDF5 file"
_WEIGHTS, _OPTIMIZER = "model_weights", "optimizer_weights"
_KERAS3_ITERATIONS, _ITERATIONS = "optimizer/vars/0", ("iter", "iteration", "iterations")


class KerasWeightsReader(FileReader):
    """Reads a `.weights.h5` file, or any other HDF5 file: the paths of datasets are the names.

    The paths by which Keras knows the variables are aliases, if the file leaves no doubt.
    """

    format, what = "Keras weights", "a Keras weights file"

    @contextlib.contextmanager
    def file(self) -> Iterator[h5py.File]:
        """Opens the HDF5 file."""
        with h5py.File(self.path, "r") as file:
            yield file

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Mapping[str, h5py.Dataset]]:
        """Opens the file and yields tensor name -> dataset."""
        with self.file() as file:
            yield self.datasets(file)

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
        return replace(spec, aliases=aliases, layers=layers)

    def datasets(self, file: h5py.File) -> Mapping[str, h5py.Dataset]:
        """Returns tensor name -> dataset, without following links."""
        return {path: file[path] for path, is_dataset in _paths(file) if is_dataset}

    def aliases(
        self, file: h5py.File, tensors: Mapping[str, TensorSpec], layers: Mapping[str, str]
    ) -> dict[str, str]:
        """Returns other names of some tensors -> tensor name."""
        return keras_paths(tensors, layers)


class KerasArchiveReader(KerasWeightsReader):
    """Reads the weights in a `.keras` archive without unpacking it.

    All weights are first compared with the CRC-32 in the archive, so that the HDF5 library never
    sees damaged bytes.
    """

    format, what = "Keras archive", "a .keras archive"
    digest = staticmethod(files.digest_of_archive)

    @contextlib.contextmanager
    def file(self) -> Iterator[h5py.File]:
        """Opens the HDF5 file in the archive."""
        _require_intact(self.path, files.stamp(self.path))
        with _opened_member(self.path) as member, h5py.File(member, "r") as file:
            yield file


@functools.lru_cache(maxsize=256)
def _require_intact(path: str, stamp: str) -> None:
    """Checks the weights, once for each state of the file."""
    with zipfile.ZipFile(path) as archive, archive.open(MEMBER) as member:
        while member.read(_CHUNK):
            pass  # At the end zipfile compares the CRC-32.


@contextlib.contextmanager
def _opened_member(path: str) -> Iterator[Any]:
    """Opens the weights in an archive; in place if they are uncompressed, as Keras stores them.

    HDF5 seeks back and forth, and `zipfile` then reads the member from the beginning each time: a
    warm start from 100 MB in three files took 1.9 times as long as `load_weights` through
    `zipfile`, and 0.4 times as long in place.
    """
    with zipfile.ZipFile(path) as archive:
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
        # The last four of the local header's 30 bytes are the sizes of the two fields after it.
        super().seek(entry.header_offset + 26)
        names, extra = struct.unpack("<HH", self.read(4))
        self._start: int = entry.header_offset + 30 + names + extra
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
        """Returns tensor name -> dataset; a listed weight that is not there is a KeyError."""
        layers = file.get(_WEIGHTS, file)
        entries = [
            (layer, weight, layers[layer][weight])
            for layer in layers
            for weight in _strings(layers[layer].attrs, "weight_names")
        ]
        count = Counter(weight for _, weight, _ in entries)
        datasets = {
            (weight if count[weight] == 1 else f"{layer}/{weight}").removesuffix(":0"): dataset
            for layer, weight, dataset in entries
        }
        if _OPTIMIZER in file:
            group = file[_OPTIMIZER]
            for weight in _strings(group.attrs, "weight_names"):
                datasets[f"{_OPTIMIZER}/{weight.removesuffix(':0')}"] = group[weight]
        return datasets

    def aliases(
        self, file: h5py.File, tensors: Mapping[str, TensorSpec], layers: Mapping[str, str]
    ) -> dict[str, str]:
        """Returns the names without the model's name -> tensor name."""
        model = f"{_model_name(file.attrs.get('model_config'))}/"
        shorter = {name.removeprefix(model): name for name in tensors if name.startswith(model)}
        return {alias: name for alias, name in shorter.items() if alias not in tensors}

    def step_name(self, tensors: Mapping[str, TensorSpec]) -> str | None:
        """Returns the tensor in which the optimizer counts its steps."""
        for name, spec in tensors.items():
            of_optimizer = name.startswith(f"{_OPTIMIZER}/")
            if of_optimizer and name.rpartition("/")[2] in _ITERATIONS and is_count(spec):
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


def _paths(group: h5py.Group) -> list[tuple[str, bool]]:
    """Returns (path, whether it is a dataset) of all in the group, without following links.

    `visititems` opens every object: 20 ms for ResNet-50, against 8.
    """
    paths: list[tuple[str, bool]] = []
    h5py.h5o.visit(
        group.id,
        lambda path, info: paths.append((path.decode(), info.type == h5py.h5o.TYPE_DATASET)),
        info=True,
    )
    return paths


def _layers(file: h5py.File) -> dict[str, str]:
    """Returns group -> name of the layer, of the groups of a weights file that are layers."""
    return {
        path.removesuffix("vars").rstrip("/"): name
        for path, _ in _paths(file)
        if path.rpartition("/")[2] == "vars"
        and isinstance(name := file[path].attrs.get("name"), str)
    }


def _value(path: str, dataset: h5py.Dataset) -> NDArray[np.generic]:
    """Reads a dataset.

    Raises:
      CheckpointError: when its values are in another file or were never written.
    """
    if dataset.external or dataset.is_virtual:
        raise unreadable(path, _HDF5, f"{dataset.name} keeps its values in another file")
    if dataset.size and not dataset.id.get_storage_size():
        raise unreadable(path, _HDF5, f"the values of {dataset.name} were never written")
    if dataset.size and dataset.dtype.kind in "biufc":
        value = np.empty(dataset.shape, dataset.dtype)  # Owns its memory, unlike `dataset[()]`.
        dataset.read_direct(value)
    else:
        value = np.asarray(dataset[()])
    # Keras writes bfloat16 as two opaque bytes with an attribute.
    if (
        value.dtype.kind == "V"
        and value.dtype != ml_dtypes.bfloat16
        and _dtype(dataset) == "bfloat16"
    ):
        return value.view(ml_dtypes.bfloat16)
    return value


def _dtype(dataset: h5py.Dataset) -> str:
    if _string(dataset.attrs.get("dtype", "")) == "bfloat16":
        return "bfloat16"
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


# A weights file numbers a layer's variables in the order in which the layer creates them. It names
# a layer in a list by its class, and a layer in an attribute by the attribute. Names are derived
# only if class and number, or else the shapes, leave one possibility among Keras's layers.
_BIASED = (("kernel", "bias"), ("kernel",))
_NORMALIZED = ("gamma", "beta", "moving_mean", "moving_variance")
_RECURRENT = (("kernel", "recurrent_kernel", "bias"), ("kernel", "recurrent_kernel"))
_SEPARABLE = (
    ("depthwise_kernel", "pointwise_kernel", "bias"),
    ("depthwise_kernel", "pointwise_kernel"),
)
_VARIABLES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "dense": _BIASED,
    "einsum_dense": _BIASED,
    "embedding": (("embeddings",),),
    "batch_normalization": (_NORMALIZED, ("moving_mean", "moving_variance")),
    "layer_normalization": (("gamma", "beta"),),
    "group_normalization": (("gamma", "beta"),),
    "normalization": (("mean", "variance", "count"),),
    **{f"conv{n}d": _BIASED for n in (1, 2, 3)},
    **{f"conv{n}d_transpose": _BIASED for n in (1, 2, 3)},
    **{f"depthwise_conv{n}d": _BIASED for n in (1, 2)},
    **{f"separable_conv{n}d": _SEPARABLE for n in (1, 2)},
}
_RECURRENT_LAYERS = ("lstm", "gru", "simple_rnn")


def keras_paths(tensors: Mapping[str, TensorSpec], layers: Mapping[str, str]) -> dict[str, str]:
    """Returns Keras's path of a variable, e.g. `cnn/conv1/kernel`, -> tensor name.

    Args:
      tensors: tensor name, e.g. `cnn/layers/conv2d/vars/0`, -> spec.
      layers: group of a layer, e.g. `cnn/layers/conv2d`, -> the layer's name, e.g. `conv1`; the
        model's group is empty.
    """
    candidates: dict[str, list[str]] = {}
    for group in layers:
        prefix = f"{group}/vars/"
        numbered = sorted(
            (name for name in tensors if name.startswith(prefix)),
            key=lambda name: name.removeprefix(prefix).zfill(9),
        )
        integers = any("float" not in tensors[name].dtype for name in numbered)
        if not group or (integers and _class(group, layers) != "normalization"):
            # Quantized layers number their scales among the variables.
            continue
        path = _layer_path(group, layers)
        shapes = [tensors[name].shape for name in numbered]
        for names in _variables(group, layers, shapes):
            if len(names) == len(numbered):
                for variable, tensor in zip(names, numbered, strict=True):
                    candidates.setdefault(f"{path}/{variable}", []).append(tensor)
    return {
        alias: names[0]
        for alias, names in sorted(candidates.items())
        if len(names) == 1 and alias not in tensors
    }


def _layer_path(group: str, layers: Mapping[str, str]) -> str:
    prefixes = itertools.accumulate(group.split("/"), lambda path, part: f"{path}/{part}")
    return "/".join(layers[prefix] for prefix in prefixes if prefix in layers)


def _variables(
    group: str, layers: Mapping[str, str], shapes: Sequence[tuple[int, ...]]
) -> tuple[tuple[str, ...], ...]:
    parent, _, last = group.rpartition("/")
    if last == "cell" and parent in layers:
        known = _class(parent, layers) in _RECURRENT_LAYERS or _is_recurrent(shapes)
        return _RECURRENT if known else ()
    if parent and parent not in layers:
        return _VARIABLES.get(_class(group, layers), ())
    return _of_shapes(shapes)


def _of_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[str, ...], ...]:
    """Returns the names that fit a layer of unknown class: a dense one, a convolution, a norm."""
    ranks = tuple(map(len, shapes))
    if len(shapes) == 2 and 2 <= ranks[0] <= 5 and ranks[1] == 1:
        # A transposed convolution has its outputs before its inputs, a depthwise one both together.
        *spatial, before, last = shapes[0]
        widths = (last, before, before * last) if spatial else (last,)
        return _BIASED if shapes[1][0] in widths else ()
    if ranks == (1, 1, 1, 1) and len(set(shapes)) == 1:
        return (_NORMALIZED,)
    return ()


def _is_recurrent(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Returns whether the shapes fit a kernel, a recurrent kernel and an optional bias."""
    if len(shapes) not in (2, 3) or [len(shape) for shape in shapes[:2]] != [2, 2]:
        return False
    (_, width), (units, same) = shapes[:2]
    return same == width and units > 0 and width in (units, 3 * units, 4 * units)


def _class(group: str, layers: Mapping[str, str]) -> str:
    """Returns the layer's class in snake case; empty if the group is named after an attribute.

    In a list of layers the groups are named by class and number; the list itself is no layer.
    """
    parent, _, last = group.rpartition("/")
    if not parent or parent in layers:
        return ""
    return re.sub(r"_\d+$", "", last)
