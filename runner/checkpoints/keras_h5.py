"""Whole-model `.h5` files and legacy `.h5` weights, as Keras 1 to 3 write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import h5py
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import digest, hdf5
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    TensorSpec,
    require_names,
    unreadable,
)

WEIGHTS, OPTIMIZER = "model_weights", "optimizer_weights"
_WHAT = "a Keras .h5 file"
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
        with hdf5.opened(self.path, self.path, _WHAT) as file:
            found = weights(file)
            tensors = {name: hdf5.tensor_spec(name, found[name]) for name in sorted(found)}
            step = _step(found, tensors)
            root = hdf5.root_name(file.attrs.get("model_config"))
        try:
            content = digest.of_file(self.path)
        except OSError as error:
            raise unreadable(self.path, _WHAT, error) from error
        return CheckpointSpec(
            self.path, step, tensors, self.format, content, _without_root(tensors, root)
        )

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        with hdf5.opened(self.path, self.path, _WHAT) as file:
            found = weights(file)
            require_names(self.path, names, found)
            for name in names:
                yield name, hdf5.value(self.path, found[name])


def lists_weights(path: str) -> bool:
    """Whether the HDF5 file at `path` has the layout that `KerasH5Reader` reads.

    Raises:
      CheckpointError: when it is damaged.
    """
    with hdf5.opened(path, path, _WHAT) as file:
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
