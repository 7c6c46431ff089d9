"""Maps of files that number their variables, written by the Keras that wrote such files."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import runner
from runner.mapping.correspondence import correspond

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5"),
]

# Builds a model of the layers of one Keras, 2 or 3, from the module.
MODELS: dict[str, Callable[[Any], list[Any]]] = {
    "LSTM": lambda k: [k.Input((5, 3)), k.layers.LSTM(4, return_sequences=True), k.layers.LSTM(4)],
    "GRU": lambda k: [k.Input((5, 3)), k.layers.GRU(4, reset_after=False)],
    "GRU with two biases": lambda k: [k.Input((5, 3)), k.layers.GRU(4)],
    "bidirectional": lambda k: [k.Input((5, 3)), k.layers.Bidirectional(k.layers.LSTM(4))],
    "simple": lambda k: [k.Input((5, 4)), k.layers.SimpleRNN(4)],
    "cells": lambda k: [k.Input((5, 3)), k.layers.RNN([k.layers.LSTMCell(4), k.layers.GRUCell(4)])],
    "ConvLSTM": lambda k: [k.Input((5, 8, 8, 3)), k.layers.ConvLSTM2D(4, 3)],
    "separable": lambda k: [k.Input((8, 8, 3)), k.layers.SeparableConv2D(4, 3)],
    "separable without bias": lambda k: [
        k.Input((8, 8, 3)),
        k.layers.SeparableConv2D(3, 1, use_bias=False),
    ],
    "depthwise": lambda k: [k.Input((8, 8, 3)), k.layers.DepthwiseConv2D(3), k.layers.Conv2D(4, 1)],
    "transposed": lambda k: [k.Input((8, 8, 4)), k.layers.Conv2DTranspose(4, 3)],
    "batch norms": lambda k: [
        k.Input((8, 8, 3)),
        k.layers.Conv2D(4, 3),
        k.layers.BatchNormalization(),
        k.layers.Conv2D(4, 3),
        k.layers.BatchNormalization(scale=False),
    ],
    "embedding": lambda k: [k.Input((5,)), k.layers.Embedding(7, 4), k.layers.GRU(4)],
}
FORMATS = ("keras", "weights.h5", "h5", "ckpt")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_a_file_of_keras_2_is_mapped(name: str, form: str, tmp_path: Path) -> None:
    keras_2 = pytest.importorskip("tf_keras", reason="it is of the extra `estimator`")
    source = keras_2.Sequential(MODELS[name](keras_2))
    rng = np.random.default_rng(0)
    # They differ in all values, and none is an initial one.
    values = [rng.uniform(1.5, 2, value.shape).astype("f4") for value in source.get_weights()]
    source.set_weights(values)
    path = tmp_path / f"source.{form}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (source.save if form in ("keras", "h5") else source.save_weights)(path)
    model = keras.Sequential(MODELS[name](keras))
    proposal = runner.propose(model, path)
    assert [*proposal.plan.problems] == []
    (one,) = proposal.correspondences.values()
    assert (one.left, one.constants, one.unused) == ((), {}, ())
    runner.warm_start(model, proposal.scaffolds)
    restored = [v.numpy() for v in model.weights if "seed" not in v.path]
    for value, expected in zip(restored, values, strict=True):
        np.testing.assert_array_equal(value, expected)


class Scaled(keras.layers.Layer):
    """A layer that saves its variables in another order than that in which it makes them."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(4,), name="scale")
        self.shift = self.add_weight(shape=(4,), name="shift")

    def call(self, inputs: Any) -> Any:
        return inputs * self.scale + self.shift

    def save_own_variables(self, store: Any) -> None:
        store["0"], store["1"] = self.shift, self.scale

    def load_own_variables(self, store: Any) -> None:
        self.shift.assign(store["0"])
        self.scale.assign(store["1"])


@pytest.mark.parametrize("form", ["keras", "weights.h5"])
def test_variables_of_a_layer_are_in_the_order_in_which_it_saves_them(
    form: str, tmp_path: Path
) -> None:
    source, model = (keras.Sequential([keras.Input((4,)), Scaled()]) for _ in range(2))
    source.set_weights([np.full(4, 2.0), np.full(4, 3.0)])
    path = tmp_path / f"source.{form}"
    (source.save if form == "keras" else source.save_weights)(path)
    runner.warm_start(model, runner.propose(model, path).scaffolds)
    assert [value.numpy()[0] for value in model.weights] == [2, 3]


def test_numbers_of_a_class_that_the_model_lacks_are_not_an_order(tmp_path: Path) -> None:
    source = keras.Sequential([keras.Input((4,)), Scaled()])
    source.save_weights(tmp_path / "source.weights.h5")
    model = keras.Sequential([keras.Input((4,)), keras.layers.LayerNormalization()])
    (one,) = runner.propose(model, tmp_path / "source.weights.h5").correspondences.values()
    assert not any(pair.is_certain for pair in one.pairs.values())


K, N = (4, 4), (4,)
Shapes = dict[str, tuple[int, ...]]
# The model's variables, the file's tensors, and which tensor each bias takes; none where the names
# leave it open. A constant would be silently wrong.
BIASES: dict[str, tuple[Shapes, Shapes, dict[str, str | None]]] = {
    "above": (
        {"proj/kernel": K, "proj/bias": N},
        {"attn.proj.weight": K, "attn.bias": N},
        {"proj/bias": "attn.bias"},
    ),
    "above, beside another": (
        {"q/kernel": K, "q/bias": N, "proj/kernel": K, "proj/bias": N},
        {"attn.q.weight": K, "attn.q.bias": N, "attn.proj.weight": K, "attn.bias": N},
        {"q/bias": "attn.q.bias", "proj/bias": "attn.bias"},
    ),
    "above all": (
        {"proj/kernel": K, "proj/bias": N},
        {"a.b.proj.weight": K, "bias": N},
        {"proj/bias": "bias"},
    ),
    "in flat names": (
        {"a/kernel": K, "a/bias": N, "c/kernel": K, "c/bias": N},
        {"W_a": K, "b_a": N, "W_c": K, "b_c": N},
        {"a/bias": "b_a", "c/bias": "b_c"},
    ),
    "in a folder of biases": (
        {"a/kernel": K, "a/bias": N},
        {"weights/a": K, "biases/a": N},
        {"a/bias": None},
    ),
    "below": (
        {"proj/kernel": K, "proj/bias": N},
        {"attn.weight": K, "attn.b.bias": N},
        {"proj/bias": None},
    ),
    "of two kernels": (
        {"q/kernel": K, "q/bias": N, "k/kernel": K, "k/bias": N},
        {"attn.q.weight": K, "attn.k.weight": K, "attn.bias": N},
        {"q/bias": None, "k/bias": None},
    ),
    "of a recurrent layer, elsewhere": (
        {
            "rnn/lstm_cell/kernel": (3, 16),
            "rnn/lstm_cell/recurrent_kernel": (4, 16),
            "rnn/lstm_cell/bias": (16,),
        },
        {"rnn.weight_ih_l0": (16, 3), "rnn.weight_hh_l0": (16, 4), "shift.x": (16,)},
        {"rnn/lstm_cell/bias": None},
    ),
}


@pytest.mark.parametrize("name", BIASES)
def test_no_constant_stands_where_a_tensor_could_be_meant(name: str) -> None:
    variables, tensors, expected = BIASES[name]
    result = correspond(variables, tensors)
    assert result.constants == {}
    pairs = {bias: result.pairs[bias] for bias in expected}
    taken = {b: pair.taken.tensors[0] if pair.is_certain else None for b, pair in pairs.items()}
    assert taken == expected


def test_a_constant_stands_for_what_the_whole_file_lacks() -> None:
    variables = {"proj/kernel": K, "proj/bias": N}
    tensors = {"proj.weight": K, "norm.weight": N, "other.bias": (7,)}
    assert correspond(variables, tensors).constants == {"proj/bias": "zeros()"}


def test_what_is_left_for_one_variable_is_decided() -> None:
    names = correspond(
        {"query/kernel": K, "key/kernel": K}, {"query.weight": K, "y.weight": K}
    ).pairs
    assert {name: pair.taken.tensors[0] for name, pair in names.items() if pair.is_certain} == {
        "query/kernel": "query.weight",
        "key/kernel": "y.weight",
    }
    assert not names["key/kernel"].is_decided


@keras.saving.register_keras_serializable("tests")
class Pair(keras.Model):
    """Two layers alike, made in either order; Keras counts their names."""

    def __init__(self, swapped: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        if swapped:
            self.second, self.first = keras.layers.Dense(4), keras.layers.Dense(4)
        else:
            self.first, self.second = keras.layers.Dense(4), keras.layers.Dense(4)

    def build(self, shape: Any) -> None:
        self.first.build(shape)
        self.second.build(shape)

    def call(self, inputs: Any) -> Any:
        return self.second(self.first(inputs))


def _nested(swapped: bool) -> keras.Model:
    layers = [keras.layers.Dense(4) for _ in range(3)]
    first, second, third = reversed(layers) if swapped else layers
    inner = keras.Sequential([keras.Input((4,)), first, second])
    inputs = keras.Input((4,))
    return keras.Model(inputs, third(inner(inputs)))


COUNTED: dict[str, Callable[[bool], keras.Model]] = {"attributes": Pair, "nested": _nested}


@pytest.mark.parametrize("form", ["keras", "weights.h5", "h5"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("kind", COUNTED)
def test_numbers_that_keras_counts_are_no_evidence(
    kind: str, swapped: bool, form: str, tmp_path: Path
) -> None:
    source, model = COUNTED[kind](False), COUNTED[kind](swapped)
    inputs = np.random.default_rng(0).normal(size=(3, 4)).astype("f4")
    source(inputs), model(inputs)
    path = tmp_path / f"source.{form}"
    (source.save_weights if form == "weights.h5" else source.save)(path)
    proposal = runner.propose(model, path)
    is_open = bool(proposal.plan.problems)
    assert not (is_open and kind == "nested" and form != "h5")
    if not is_open:
        runner.warm_start(model, proposal.scaffolds)
        np.testing.assert_allclose(model(inputs), source(inputs), rtol=1e-5)
