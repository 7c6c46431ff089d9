from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from runner.checkpoints.keras_names import aliases
from runner.checkpoints.open import open_checkpoint
from runner.checkpoints.reader import TensorSpec
from tests.conformance.goldens import old_array_protocol


def _tensors(group: str, *shapes: tuple[int, ...], dtype: str = "float32") -> dict[str, TensorSpec]:
    names = [f"{group}/vars/{number}" for number in range(len(shapes))]
    return {name: TensorSpec(name, shape, dtype) for name, shape in zip(names, shapes, strict=True)}


def test_names_of_nested_layers() -> None:
    layers = {"": "net", "cnn": "cnn", "cnn/layers/conv2d_1": "second"}
    tensors = _tensors("cnn/layers/conv2d_1", (3, 3, 1, 4), (4,))
    assert aliases(tensors, layers) == {
        "cnn/second/kernel": "cnn/layers/conv2d_1/vars/0",
        "cnn/second/bias": "cnn/layers/conv2d_1/vars/1",
    }


def test_a_cell_belongs_to_its_recurrent_layer() -> None:
    layers = {"layers/lstm": "lstm", "layers/lstm/cell": "lstm_cell"}
    tensors = _tensors("layers/lstm/cell", (4, 12), (3, 12), (12,))
    assert list(aliases(tensors, layers)) == [
        "lstm/lstm_cell/bias",
        "lstm/lstm_cell/kernel",
        "lstm/lstm_cell/recurrent_kernel",
    ]


@pytest.mark.parametrize(
    ("group", "layers", "dtype"),
    [
        ("layers/my_layer", {"layers/my_layer": "mine"}, "float32"),
        ("dense", {"dense": "attribute"}, "int8"),
        ("layers/dense", {"layers/dense": "quantized"}, "int8"),
        ("layers/dense", {}, "float32"),
    ],
)
def test_what_is_not_certain_has_no_alias(group: str, layers: dict[str, str], dtype: str) -> None:
    assert aliases(_tensors(group, (2, 3), (3,), dtype=dtype), layers) == {}


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
        assert aliases(_tensors(group, *shapes), layers) == expected


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
    names = [f"rnn/lstm_cell/{each}" for each in ("kernel", "recurrent_kernel", "bias")]
    found = aliases(_tensors("rnn/cell", *shapes), layers)
    assert sorted(found) == sorted(names[: len(shapes)] if known else [])


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
    spec = open_checkpoint(str(path)).spec()
    wanted = {each.path.removeprefix("net/"): each.shape for each in model.weights}
    found = {name: spec.tensors[spec.aliases[name]].shape for name in wanted if "seed" not in name}
    assert found == {name: shape for name, shape in wanted.items() if "seed" not in name}


def test_a_batch_norm_with_three_variables_is_not_certain() -> None:
    group = "layers/batch_normalization"
    assert aliases(_tensors(group, (3,), (3,), (3,)), {group: "norm"}) == {}
    two = aliases(_tensors(group, (3,), (3,)), {group: "norm"})
    assert list(two) == ["norm/moving_mean", "norm/moving_variance"]


def test_two_layers_of_one_name_have_no_alias() -> None:
    layers = {"layers/dense": "same", "layers/dense_1": "same"}
    tensors = _tensors("layers/dense", (2, 3)) | _tensors("layers/dense_1", (2, 3))
    assert aliases(tensors, layers) == {}


@pytest.mark.parametrize(
    ("group", "layer"),
    [
        ("dense", keras.layers.Dense(2, name="x")),
        ("dense", keras.layers.Dense(2, use_bias=False, name="x")),
        ("conv1d", keras.layers.Conv1D(2, 2, name="x")),
        ("separable_conv1d", keras.layers.SeparableConv1D(2, 2, name="x")),
        ("depthwise_conv1d", keras.layers.DepthwiseConv1D(2, name="x")),
        ("conv1d_transpose", keras.layers.Conv1DTranspose(2, 2, name="x")),
        ("batch_normalization", keras.layers.BatchNormalization(name="x")),
        (
            "batch_normalization",
            keras.layers.BatchNormalization(center=False, scale=False, name="x"),
        ),
        ("layer_normalization", keras.layers.LayerNormalization(name="x")),
        ("lstm", keras.layers.LSTM(2, name="x")),
        ("gru", keras.layers.GRU(2, use_bias=False, name="x")),
        ("simple_rnn", keras.layers.SimpleRNN(2, name="x")),
        (
            "einsum_dense",
            keras.layers.EinsumDense("abc,cd->abd", (None, 2), bias_axes="d", name="x"),
        ),
    ],
)
def test_the_names_are_those_that_keras_gives(group: str, layer: keras.layers.Layer) -> None:
    layer.build((None, 4, 3))
    expected = [variable.path for variable in layer.variables if "seed" not in variable.path]
    group = f"layers/{group}"
    layers, at = {group: "x"}, group
    if hasattr(layer, "cell"):
        at = f"{group}/cell"
        layers[at] = layer.cell.name
    variables = [v for v in layer.variables if "seed" not in v.path]
    found = aliases(_tensors(at, *(tuple(v.shape) for v in variables)), layers)
    assert sorted(found, key=lambda alias: int(found[alias].rpartition("/")[2])) == expected
    assert np.all([found[path].endswith(str(index)) for index, path in enumerate(expected)])
