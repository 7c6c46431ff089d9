from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import h5py
import keras
import ml_dtypes
import numpy as np
import pytest

from runner.checkpoints.formats.keras_files import (
    KerasArchiveReader,
    KerasH5Reader,
    KerasWeightsReader,
)
from runner.checkpoints.formats.keras_names import keras_paths
from runner.checkpoints.open import open_reader
from runner.checkpoints.reader import TensorSpec
from runner.errors import CheckpointError
from tests.conformance.goldens import old_array_protocol


def test_bfloat16_as_keras_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "w.h5"
    value = np.array([1.5, -2], ml_dtypes.bfloat16)
    with h5py.File(path, "w") as file:
        file.create_dataset("w", data=value.view("V2")).attrs["dtype"] = "bfloat16"
    reader = open_reader(str(path))
    assert reader.spec().tensors["w"].dtype == "bfloat16"
    ((_, read),) = reader.read(["w"])
    assert read.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read, value)


LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {"data": np.arange(6, dtype=np.float32).reshape(2, 3)},
    "compressed": {"data": np.arange(6, dtype=np.float32), "compression": "gzip"},
    "big-endian": {"data": np.arange(6, dtype=">f4")},
    "booleans": {"data": np.array([True, False])},
    "complex": {"data": np.array([1 + 2j], np.complex64)},
    "scalar": {"data": np.float64(3)},
    "empty": {"data": np.zeros((0, 3), np.float32)},
    "strings": {"data": np.array([b"a", b"bc"])},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_reading_of_a_file_gives_its_values(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "w.h5"
    value = np.asarray(LAYOUTS[layout]["data"])
    with h5py.File(path, "w", userblock_size=512) as file:  # Offsets begin after the block.
        file.create_dataset("w", **LAYOUTS[layout])
    reader = KerasWeightsReader(str(path))
    reader.spec()
    for _ in range(2):
        ((_, read),) = reader.read(["w"])
        np.testing.assert_array_equal(read, value)
        assert (read.dtype.name, read.flags.writeable) == (value.dtype.name, True)


def test_a_file_that_changed_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "w.h5"
    with h5py.File(path, "w") as file:
        file["w"], file["lost"] = np.zeros(4, np.float32), np.zeros(4, np.float32)
    reader = open_reader(str(path))
    reader.spec()
    with h5py.File(path, "w") as file:
        file["first"], file["w"] = np.zeros(100, np.float32), np.ones(4, np.float32)
    ((_, read),) = reader.read(["w"])
    np.testing.assert_array_equal(read, np.ones(4, np.float32))
    with pytest.raises(CheckpointError, match="holds no tensor 'lost'"):
        list(reader.read(["lost"]))
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read as a Keras weights file"):
        list(reader.read(["w"]))


def test_what_is_not_in_the_file_is_not_read(tmp_path: Path) -> None:
    path, other = tmp_path / "w.h5", tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["secret"] = np.ones(4, np.float32)
    with h5py.File(path, "w") as file:
        file.create_dataset("unwritten", shape=(4,), dtype="float32")
        file.create_dataset("outside", (4,), "float32", external=[(str(other), 0, 16)])
        file["link"] = h5py.ExternalLink(str(other), "/")
    reader = open_reader(str(path))
    assert list(reader.spec().tensors) == ["outside", "unwritten"]
    with pytest.raises(CheckpointError, match="the values of /unwritten were never written"):
        list(reader.read(["unwritten"]))
    with pytest.raises(CheckpointError, match="/outside keeps its values in another file"):
        list(reader.read(["outside"]))


@pytest.mark.parametrize(
    ("member", "cause"), [("config.json", ".*no item"), ("model.weights.h5", ".*signature")]
)
def test_an_archive_without_weights_is_refused(member: str, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, "<html>")
    with pytest.raises(CheckpointError, match=rf"cannot be read as a .keras archive\n{cause}"):
        KerasArchiveReader(str(path)).spec()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_weights_in_an_archive_are_read_whether_compressed_or_not(
    method: int, tmp_path: Path
) -> None:
    kernel = np.random.default_rng(0).normal(size=(64, 64))
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["layers/mine/vars/0"] = kernel
    with zipfile.ZipFile(tmp_path / "net.keras", "w", method) as archive:
        archive.writestr("config.json", "{}")
        archive.write(tmp_path / "w.h5", "model.weights.h5")
    reader = open_reader(str(tmp_path / "net.keras"))
    ((_, read),) = reader.read(["layers/mine/vars/0"])
    np.testing.assert_array_equal(read, kernel)


def _write(path: Path, layers: dict[str, dict[str, float]]) -> str:
    with h5py.File(path, "w") as file:
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


def test_legacy_weights_have_the_layers_at_the_top(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.attrs["layer_names"] = [b"a"]
        group = file.create_group("a")
        group.attrs["weight_names"] = [b"a/kernel:0"]
        group["a/kernel:0"] = np.array([1], np.float32)
    reader = open_reader(str(tmp_path / "w.h5"))
    assert list(reader.spec().tensors) == ["a/kernel"]


def test_lists_in_parts_are_joined(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.h5", {"a": {"x": 1, "y": 2, "z": 3}})
    with h5py.File(path, "a") as file:
        attributes = file["model_weights/a"].attrs
        del attributes["weight_names"]
        attributes["weight_names0"], attributes["weight_names1"] = ["x"], ["y"]
        attributes["weight_names3"] = ["z, which is not reached"]
    # What no list names has its path.
    assert list(KerasH5Reader(path).spec().tensors) == ["model_weights/a/z", "x", "y"]


@pytest.mark.parametrize(
    ("config", "aliases"),
    [
        ('{"config": {"name": "net"}}', {"a/kernel": "net/a/kernel"}),
        *((config, {}) for config in (b"{", '{"config": []}', "[]", '{"config": {"name": 3}}')),
    ],
)
def test_the_models_own_name_may_be_left_out(
    config: object, aliases: dict[str, str], tmp_path: Path
) -> None:
    path = _write(tmp_path / "m.h5", {"a": {"net/a/kernel": 1.0}, "b": {"other/b": 2.0}})
    with h5py.File(path, "a") as file:
        file.attrs["model_config"] = config
    assert KerasH5Reader(path).spec().aliases == aliases


def test_a_pinned_file_that_was_damaged_is_not_shown_to_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path / "m.h5", {"a": {"kernel": 1.0}})
    digest = open_reader(path).spec().digest
    Path(path).write_bytes(Path(path).read_bytes() + b"more")
    monkeypatch.setattr(h5py, "File", None)
    with pytest.raises(CheckpointError, match="is not the checkpoint that was pinned"):
        open_reader(path, digest)


@pytest.mark.parametrize("kind", ["missing", "group"])
def test_a_list_that_lies_is_refused(kind: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "m.h5", {"a": {"kernel": 1.0}})
    with h5py.File(path, "a") as file:
        group = file["model_weights/a"]
        group.attrs["weight_names"] = ["kernel", "bias"]
        if kind == "group":
            group.create_group("bias")
    with pytest.raises(CheckpointError, match="it lists model_weights/a/bias, which is not there"):
        KerasH5Reader(path).spec()


def test_a_file_of_other_datasets_is_listed_by_their_paths(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["layers/dense/vars/0"] = np.ones(2)
        file["labels"] = ["cat", "dog"]
    spec = open_reader(str(tmp_path / "w.h5")).spec()
    dtypes = {name: tensor.dtype for name, tensor in spec.tensors.items()}
    assert dtypes == {"labels": "string", "layers/dense/vars/0": "float64"}
    assert (spec.step, spec.aliases) == (None, {})


def _tensors(group: str, *shapes: tuple[int, ...], dtype: str = "float32") -> dict[str, TensorSpec]:
    names = [f"{group}/vars/{number}" for number in range(len(shapes))]
    return {name: TensorSpec(name, shape, dtype) for name, shape in zip(names, shapes, strict=True)}


@pytest.mark.parametrize(
    ("group", "layers", "dtype"),
    [
        ("layers/my_layer", {"layers/my_layer": "mine"}, "float32"),
        ("dense", {"dense": "attribute"}, "int8"),
        ("layers/dense", {"layers/dense": "quantized"}, "int8"),
        ("layers/dense", {}, "float32"),
        ("layers/dense", {"layers/dense": "same", "layers/other/dense": "same"}, "float32"),
    ],
)
def test_what_is_not_certain_has_no_alias(group: str, layers: dict[str, str], dtype: str) -> None:
    tensors = _tensors("layers/other/dense", (2, 3), (3,))
    assert keras_paths(tensors | _tensors(group, (2, 3), (3,), dtype=dtype), layers) == {}
    norm = _tensors("layers/batch_normalization", (3,), (3,), (3,))
    assert keras_paths(norm, {"layers/batch_normalization": "which three"}) == {}


@pytest.mark.parametrize(
    ("shapes", "names"),
    [
        (((2, 3), (3,)), ("kernel", "bias")),
        (((3, 3, 2, 4), (4,)), ("kernel", "bias")),
        (((3, 3, 2, 4), (2,)), ("kernel", "bias")),  # transposed
        (((3, 3, 2, 4), (8,)), ("kernel", "bias")),  # depthwise
        (((4,), (4,), (4,), (4,)), ("gamma", "beta", "moving_mean", "moving_variance")),
        (((2, 3), (2,)), ()),  # no layer of Keras's has such a bias
        (((2, 3),), ()),  # dense without a bias, or an embedding
        (((4,), (4,)), ()),  # either pair of a normalization
        (((4,), (4,), (4,)), ()),
        ((), ()),
    ],
)
def test_a_layer_that_is_an_attribute_is_known_by_its_shapes(
    shapes: tuple[tuple[int, ...], ...], names: tuple[str, ...]
) -> None:
    for group, path in (("head", "head"), ("body/head", "parent/head")):
        layers = {"": "net", "body": "parent", group: "head"}
        expected = {f"{path}/{name}": f"{group}/vars/{at}" for at, name in enumerate(names)}
        assert keras_paths(_tensors(group, *shapes), layers) == expected


@pytest.mark.parametrize(
    ("shapes", "known"),
    [
        (((2, 12), (3, 12), (12,)), True),
        (((2, 9), (3, 9), (2, 9)), True),  # a GRU with two biases
        (((2, 3), (3, 3)), True),
        (((2, 12), (5, 12), (12,)), False),
        (((2, 12), (12,)), False),
    ],
)
def test_a_cell_of_an_attribute_is_known_by_its_shapes(
    shapes: tuple[tuple[int, ...], ...], known: bool
) -> None:
    layers = {"": "net", "rnn": "rnn", "rnn/cell": "lstm_cell"}
    names = [f"rnn/lstm_cell/{name}" for name in ("kernel", "recurrent_kernel", "bias")]
    paths = keras_paths(_tensors("rnn/cell", *shapes), layers)
    assert sorted(paths) == sorted(names[: len(shapes)] if known else [])


def test_every_variable_of_a_subclassed_model_is_known(tmp_path: Path) -> None:
    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="net")
            self.body = keras.Sequential([keras.layers.Dense(4)], name="body")
            self.norm = keras.layers.BatchNormalization(name="normal")
            self.rnn = keras.layers.GRU(3, name="recurrent")
            self.head = keras.layers.Dense(2, name="logits")

        def call(self, features: Any) -> Any:
            hidden = self.norm(self.body(features))
            return self.head(self.rnn(hidden[:, None, :]))

    model = Net()
    model(np.zeros((1, 8), np.float32))
    path = tmp_path / "net.weights.h5"
    with old_array_protocol():
        model.save_weights(path)
    spec = open_reader(str(path)).spec()
    wanted = {variable.path.removeprefix("net/"): variable.shape for variable in model.weights}
    shapes = {name: spec.tensors[spec.aliases[name]].shape for name in wanted if "seed" not in name}
    assert shapes == {name: shape for name, shape in wanted.items() if "seed" not in name}


LAYERS: list[tuple[str, Any]] = [
    ("dense", keras.layers.Dense(2, name="x")),
    ("dense", keras.layers.Dense(2, use_bias=False, name="x")),
    ("conv1d", keras.layers.Conv1D(2, 2, name="x")),
    ("separable_conv1d", keras.layers.SeparableConv1D(2, 2, name="x")),
    ("depthwise_conv1d", keras.layers.DepthwiseConv1D(2, name="x")),
    ("conv1d_transpose", keras.layers.Conv1DTranspose(2, 2, name="x")),
    ("batch_normalization", keras.layers.BatchNormalization(name="x")),
    ("batch_normalization", keras.layers.BatchNormalization(center=False, scale=False, name="x")),
    ("layer_normalization", keras.layers.LayerNormalization(name="x")),
    ("group_normalization", keras.layers.GroupNormalization(3, name="x")),
    ("normalization", keras.layers.Normalization(name="x")),
    ("lstm", keras.layers.LSTM(2, name="x")),
    ("gru", keras.layers.GRU(2, use_bias=False, name="x")),
    ("simple_rnn", keras.layers.SimpleRNN(2, name="x")),
    ("einsum_dense", keras.layers.EinsumDense("abc,cd->abd", (None, 2), bias_axes="d", name="x")),
]


@pytest.mark.parametrize(("group", "layer"), LAYERS)
def test_the_names_are_those_that_keras_gives(group: str, layer: keras.layers.Layer) -> None:
    layer.build((None, 4, 3))
    variables = [variable for variable in layer.variables if "seed" not in variable.path]
    layers, at = {f"layers/{group}": "x"}, f"layers/{group}"
    if hasattr(layer, "cell"):
        at = f"layers/{group}/cell"
        layers[at] = layer.cell.name
    paths = keras_paths(_tensors(at, *(tuple(variable.shape) for variable in variables)), layers)
    assert paths == {variable.path: f"{at}/vars/{n}" for n, variable in enumerate(variables)}
