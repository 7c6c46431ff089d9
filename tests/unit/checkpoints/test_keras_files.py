from __future__ import annotations

import json
import zipfile
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

from runner.checkpoints.keras_files import KerasArchiveReader, KerasH5Reader, KerasWeightsReader
from runner.checkpoints.open import open_checkpoint
from runner.errors import CheckpointError


def test_bfloat16_as_keras_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "w.h5"
    value = np.array([1.5, -2], ml_dtypes.bfloat16)
    with h5py.File(path, "w") as file:
        file.create_dataset("w", data=value.view("V2")).attrs["dtype"] = "bfloat16"
    reader = open_checkpoint(str(path))
    assert reader.spec().tensors["w"].dtype == "bfloat16"
    ((_, read),) = reader.read(["w"])
    assert read.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read, value)


def test_values_that_were_never_written_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.create_dataset("w", shape=(4,), dtype="float32")
    with pytest.raises(CheckpointError, match="the values of /w were never written"):
        list(open_checkpoint(str(tmp_path / "w.h5")).read(["w"]))


def test_values_in_another_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(16))
    with h5py.File(tmp_path / "w.h5", "w") as file:
        outside = [(str(tmp_path / "secret"), 0, 16)]
        file.create_dataset("w", shape=(4,), dtype="float32", external=outside)
    with pytest.raises(CheckpointError, match="/w keeps its values in another file"):
        list(open_checkpoint(str(tmp_path / "w.h5")).read(["w"]))


def test_links_to_other_files_are_not_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["secret"] = np.ones(3)
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["w"] = np.ones(3)
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/")
    assert list(open_checkpoint(str(tmp_path / "w.h5")).spec().tensors) == ["w"]


def test_an_archive_without_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
    with pytest.raises(CheckpointError, match=r"cannot be read as a .keras archive\n.*no item"):
        KerasArchiveReader(str(path)).spec()


def test_weights_of_another_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.weights.h5", "<html>")
    with pytest.raises(CheckpointError, match=r"cannot be read as a .keras archive"):
        KerasArchiveReader(str(path)).spec()


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


def test_lists_in_parts_are_joined(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.h5", {"a": {"x": 1, "y": 2, "z": 3}})
    with h5py.File(path, "a") as file:
        attributes = file["model_weights/a"].attrs
        del attributes["weight_names"]
        attributes["weight_names0"], attributes["weight_names1"] = ["x"], ["y"]
        attributes["weight_names3"] = ["z, which is not reached"]
    assert list(KerasH5Reader(path).spec().tensors) == ["x", "y"]


@pytest.mark.parametrize("config", [b"{", '{"config": []}', "[]", '{"config": {"name": 3}}'])
def test_a_model_may_have_no_name(config: object, tmp_path: Path) -> None:
    path = _write(tmp_path / "m.h5", {"a": {"net/kernel": 1}})
    with h5py.File(path, "a") as file:
        file.attrs["model_config"] = config
    assert KerasH5Reader(path).spec().aliases == {}


def test_a_pinned_file_that_was_damaged_is_not_shown_to_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path / "m.h5", {"a": {"kernel": 1.0}})
    digest = open_checkpoint(path).spec().digest
    content = bytearray(Path(path).read_bytes())
    content[-1] ^= 1
    Path(path).write_bytes(content)
    monkeypatch.setattr(h5py, "File", None)
    with pytest.raises(CheckpointError, match="is not the checkpoint that was pinned"):
        open_checkpoint(path, digest)


@pytest.mark.parametrize("kind", ["missing", "group"])
def test_a_list_that_lies_is_refused(kind: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "m.h5", {"a": {"kernel": 1.0}})
    with h5py.File(path, "a") as file:
        group = file["model_weights/a"]
        group.attrs["weight_names"] = ["kernel", "bias"]
        if kind == "group":
            group.create_group("bias")
    message = "no attribute" if kind == "group" else "doesn't exist"
    with pytest.raises(CheckpointError, match=message):
        KerasH5Reader(path).spec()


def test_weights_without_an_optimizer_have_no_step(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["layers/dense/vars/0"] = np.ones((2, 3), np.float32)
    spec = KerasWeightsReader(str(tmp_path / "w.h5")).spec()
    assert (spec.step, spec.aliases) == (None, {})


def test_a_file_of_other_datasets_is_listed_by_their_paths(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["encoder/w"] = np.ones(2)
        file["labels"] = ["cat", "dog"]
    tensors = KerasWeightsReader(str(tmp_path / "w.h5")).spec().tensors
    assert {name: spec.dtype for name, spec in tensors.items()} == {
        "encoder/w": "float64",
        "labels": "string",
    }
