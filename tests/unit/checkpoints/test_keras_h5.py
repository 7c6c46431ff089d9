from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from runner.checkpoints.keras_files import KerasH5Reader
from runner.checkpoints.open import open_checkpoint
from runner.errors import CheckpointError


def _write(path: Path, layers: dict[str, dict[str, float]], config: object = None) -> str:
    with h5py.File(path, "w") as file:
        if config is not None:
            file.attrs["model_config"] = json.dumps(config)
        weights = file.create_group("model_weights")
        for layer, values in layers.items():
            group = weights.create_group(layer)
            group.attrs["weight_names"] = list(values)
            for name, value in values.items():
                group[name] = np.array([value], np.float32)
    return str(path)


def test_weights_of_one_name_are_told_apart_by_layer(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.h5", {"a": {"kernel:0": 1}, "b": {"kernel:0": 2, "b/bias:0": 3}})
    reader = KerasH5Reader(path)
    read = {name: value.item() for name, value in reader.read(list(reader.spec().tensors))}
    assert read == {"a/kernel": 1, "b/bias": 3, "b/kernel": 2}


def test_the_models_own_name_may_be_left_out(tmp_path: Path) -> None:
    layers = {"a": {"net/a/kernel": 1.0}, "b": {"other/b": 2.0}}
    path = _write(tmp_path / "m.h5", layers, {"config": {"name": "net"}})
    assert KerasH5Reader(path).spec().aliases == {"a/kernel": "net/a/kernel"}


def test_legacy_weights_have_the_layers_at_the_top(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.attrs["layer_names"] = [b"a"]
        group = file.create_group("a")
        group.attrs["weight_names"] = [b"a/kernel:0"]
        group["a/kernel:0"] = np.array([1], np.float32)
    reader = open_checkpoint(str(tmp_path / "w.h5"))
    assert list(reader.spec().tensors) == ["a/kernel"]


@pytest.mark.parametrize("kind", ["missing", "group"])
def test_a_list_that_lies_is_refused(kind: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "m.h5", {"a": {"kernel": 1.0}})
    with h5py.File(path, "a") as file:
        group = file["model_weights/a"]
        group.attrs["weight_names"] = ["kernel", "bias"]
        if kind == "group":
            group.create_group("bias")
    message = "is listed as a weight and is no dataset" if kind == "group" else "doesn't exist"
    with pytest.raises(CheckpointError, match=message):
        KerasH5Reader(path).spec()
