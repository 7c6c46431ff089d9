"""A reference decides on tensors of one layer that lie in several modules, or move together."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import runner
from runner.mapping.correspondence import Correspondence, Pair
from runner.mapping.module_fitting import Taken
from runner.mapping.text import document
from tests.unit.mapping.test_values import (
    Arrays,
    Scale,
    assert_decided,
    attending,
    attention,
    recorded,
    two_heads,
    written,
)


def with_values(build: Callable[[], keras.Model]) -> tuple[keras.Model, Arrays]:
    """A model with random values, and these."""
    keras.utils.set_random_seed(3)
    random, model = np.random.default_rng(1), build()
    for variable in model.variables:
        variable.assign(random.uniform(-1, 1, variable.shape))
    return model, {v.path: v.numpy() for v in model.variables}


def blocks() -> keras.Model:
    """Attention and a scale of its output."""
    x = keras.Input((5, 6))
    y = x + Scale(name="scale")(attention(layers.LayerNormalization(epsilon=1e-5, name="norm")(x)))
    return keras.Model(x, layers.Dense(3, name="head")(y))


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize(("q", "v"), [("q_bias", "v_bias"), ("p1", "p0")])
def test_biases_beside_a_fused_kernel_are_found(
    is_recorded: bool, q: str, v: str, tmp_path: Path
) -> None:
    """BEiT adds them behind the projection, or calls a function with both (no record)."""
    model, values = with_values(blocks)
    for variable in model.variables:
        if variable.path == "k/bias":
            variable.assign(np.zeros(6))
    x = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    reference = recorded(model, x)
    normed = reference["activations/norm"]
    qkv = np.concatenate([values[f"{n}/kernel"] for n in "qkv"], 1)
    record = {"activations/attn.qkv": normed @ qkv} if is_recorded else {}
    tensors = {
        "norm.weight": values["norm/gamma"], "norm.bias": values["norm/beta"],
        f"attn.{q}": values["q/bias"], f"attn.{v}": values["v/bias"], "attn.qkv.weight": qkv.T,
        "attn.proj.weight": values["o/kernel"].T, "attn.proj.bias": values["o/bias"],
        "gamma": values["scale/gamma"],
        "head.weight": values["head/kernel"].T, "head.bias": values["head/bias"],
    }  # fmt: skip
    out = reference["activations/o"]
    records = {
        "inputs": x, "outputs": reference["outputs"], "activations/norm": normed, **record,
        "activations/attn.proj": out, "activations/attn": out,
        "activations/head": reference["activations/head"], "metadata": reference["metadata"],
    }  # fmt: skip
    assert_decided(blocks(), written(tmp_path, tensors, records))


def convolved() -> keras.Model:
    x = keras.Input((5, 5, 3))
    y = x
    for name in "ab":
        y = keras.ops.leaky_relu(layers.Conv2D(6, 3, padding="same", name=name)(y)) * 1.5
    y = layers.Dense(6, "tanh", name="hidden")(keras.ops.mean(y, (1, 2)))
    return keras.Model(x, layers.Dense(3, name="head")(y))


def test_a_bias_of_the_module_behind_a_convolution_is_found_and_proven(tmp_path: Path) -> None:
    """The module of the kernel computes without it, that of the bias goes on."""
    model, values = with_values(convolved)
    x = np.random.default_rng(0).normal(size=(4, 5, 5, 3)).astype(np.float32)
    reference = recorded(model, x)

    def first(array: Any) -> Any:
        return np.moveaxis(np.asarray(array), -1, 1)

    tensors, records = {}, {"inputs": first(x), "outputs": reference["outputs"]}
    for name in "ab":
        bias, out = values[f"{name}/bias"], reference[f"activations/{name}"]
        tensors[f"conv_{name}.weight"] = values[f"{name}/kernel"].transpose(3, 2, 0, 1)
        tensors[f"act_{name}.bias"] = bias
        records[f"activations/conv_{name}"] = first(out - bias)
        records[f"activations/act_{name}"] = first(keras.ops.leaky_relu(out) * 1.5)
    tensors |= {
        "fc.weight": values["hidden/kernel"].T, "fc_bias": values["hidden/bias"],
        "head.weight": values["head/kernel"].T, "head.bias": values["head/bias"],
    }  # fmt: skip
    hidden = np.arctanh(np.clip(reference["activations/hidden"], -0.9999999, 0.9999999))
    records["activations/fc"] = hidden - values["hidden/bias"]
    records["activations/head"] = reference["activations/head"]
    records["metadata"] = np.array('{"layout": "channels_first"}')
    assert_decided(convolved(), written(tmp_path, tensors, records))


class Shifts(layers.Layer):
    """Mixtures with the step before, by a factor each."""

    def __init__(self, count: int, **options: Any) -> None:
        super().__init__(**options)
        self.count = count

    def build(self, shape: Any) -> None:
        self.factors = [self.add_weight(name=f"f{n}", shape=shape[-1:]) for n in range(self.count)]

    def call(self, x: Any) -> Any:
        before = keras.ops.roll(x, 1, axis=1)
        return [x * factor + before * (1 - factor) for factor in self.factors]


def timed() -> keras.Model:
    """Three alike branches of a mixture and its projection, which are told apart at their end."""
    y = x = keras.Input((5, 6))
    for at in range(2):
        parts = zip("krv", Shifts(3, name=f"{at}_mix")(y), strict=True)
        k, r, v = (layers.Dense(6, name=f"{at}_{name}")(z) for name, z in parts)
        y = y + layers.Dense(6, name=f"{at}_o")(keras.ops.sigmoid(r) * keras.ops.tanh(k) + 0.5 * v)
    return keras.Model(x, layers.Dense(3, name="head")(y))


def gated() -> keras.Model:
    """A gate that half of the wider kernel could be, with the other mixture."""
    x = keras.Input((5, 6))
    one, two = Shifts(2, name="mix")(x)
    gate = layers.Dense(6, "sigmoid", use_bias=False, name="gate")(one)
    key = layers.Dense(12, "relu", use_bias=False, name="key")(two)
    y = x + gate * layers.Dense(6, use_bias=False, name="value")(key**2)
    return keras.Model(x, layers.Dense(3, name="head")(y))


# The mixtures in the order of the file, and the projections.
@pytest.mark.parametrize(
    ("build", "names"),
    [
        (timed, {"f0": "time_mix_v", "f1": "time_mix_k", "f2": "time_mix_r",
                 "k": "value", "r": "key", "v": "receptance", "o": "output"}),
        (timed, {"f0": "p2", "f1": "p0", "f2": "p1", "k": "m3", "r": "m1", "v": "m2", "o": "m0"}),
        (gated, {"f0": "p1", "f1": "p0", "gate": "a", "key": "b", "value": "c"}),
    ],
)  # fmt: skip
def test_a_mixture_and_its_reader_are_exchanged_together(
    build: Callable[[], keras.Model], names: dict[str, str], tmp_path: Path
) -> None:
    model, values = with_values(build)
    x = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    reference = recorded(model, x)

    def spelled(path: str) -> str:
        layer, _, leaf = path.rpartition("/")
        block, _, part = layer.rpartition("_")
        end = {"kernel": "weight"}.get(leaf, leaf)
        inner = names[leaf] if part == "mix" else f"{names.get(part, part)}.{end}"
        return f"blocks.{block or 0}.{inner}" if part != "head" else inner

    tensors = {
        spelled(path): value.T if path.endswith("kernel") else value
        for path, value in sorted(values.items(), key=lambda item: spelled(item[0]))
    }
    records = {
        f"activations/{spelled(key.partition('/')[2] + '/x').removesuffix('.x')}"
        if "/" in key
        else key: value
        for key, value in reference.items()
        if not key.endswith("mix")
    }
    # As PyTorch records them, without the activation.
    for path, value in values.items():
        layer, _, leaf = path.rpartition("/")
        if build is gated and leaf == "kernel" and layer in ("gate", "key"):
            factor = values[f"mix/{'f0' if layer == 'gate' else 'f1'}"]
            mixed = x * factor + np.roll(x, 1, axis=1) * (1 - factor)
            records[f"activations/blocks.0.{names[layer]}"] = mixed @ value
    assert_decided(build(), written(tmp_path, tensors, records))


class Adapted(layers.Layer):
    """A dense layer with an adapter of two matrices."""

    def build(self, shape: Any) -> None:
        size = shape[-1]
        self.kernel = self.add_weight(name="kernel", shape=(size, size))
        self.bias = self.add_weight(name="bias", shape=(size,))
        self.down = self.add_weight(name="down", shape=(size, 2))
        self.up = self.add_weight(name="up", shape=(2, size))

    def call(self, x: Any) -> Any:
        return x @ self.kernel + self.bias + x @ self.down @ self.up


def adapted() -> keras.Model:
    y = x = keras.Input((5, 6))
    for at in range(3):
        q, v = (Adapted(name=f"{at}_{name}")(y) for name in "qv")
        y = layers.Dense(6, name=f"{at}_o")(keras.ops.tanh(q) * v)
    return keras.Model(x, layers.Dense(3, name="head")(y))


def test_adapters_of_several_layers_are_found_whole(tmp_path: Path) -> None:
    model, values = with_values(adapted)
    x = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    ends = {"kernel": "base.weight", "bias": "base.bias", "down": "A.weight", "up": "B.weight"}

    def spelled(path: str) -> str:
        layer, _, leaf = path.rpartition("/")
        name = f"layers.{layer.replace('_', '.')}" if "_" in layer else layer
        return f"{name}.{ends[leaf] if layer[-1] in 'qv' else ends[leaf].partition('.')[2]}"

    tensors = {spelled(p): v.T if v.ndim > 1 else v for p, v in values.items()}
    records = {
        f"activations/layers.{key.partition('/')[2].replace('_', '.')}" if "_" in key else key: a
        for key, a in recorded(model, x).items()
    }
    assert_decided(adapted(), written(tmp_path, tensors, records))


def counted(first: str, second: str) -> keras.Model:
    """Words, and the mean of what they are in another table."""
    x = keras.Input((5,), dtype="int32")
    mean = keras.ops.mean(layers.Embedding(9, 6, name=first)(x), 1, keepdims=True)
    y = layers.Embedding(9, 6, name=second)(x) + mean
    return keras.Model(x, layers.Dense(3, name="head")(layers.LayerNormalization(name="norm")(y)))


@pytest.mark.parametrize("names", [("bag", "words"), ("a", "b"), ("words", "bag")])
def test_two_tables_that_agree_with_one_record_are_told_apart(
    names: tuple[str, str], tmp_path: Path
) -> None:
    """PyTorch's `EmbeddingBag` records the mean alone, so both tables agree with the other's."""
    model, values = with_values(lambda: counted("bag", "words"))
    x = np.random.default_rng(0).integers(0, 9, (4, 5))
    reference = recorded(model, x)
    reference["activations/bag"] = reference["activations/bag"].mean(1)
    tensors = {
        "words.weight": values["words/embeddings"], "bag.weight": values["bag/embeddings"],
        "norm.weight": values["norm/gamma"], "norm.bias": values["norm/beta"],
        "head.weight": values["head/kernel"].T, "head.bias": values["head/bias"],
    }  # fmt: skip
    assert_decided(counted(*names), written(tmp_path, tensors, reference))


def test_a_bias_that_no_rule_can_make_leaves_its_layer_undecided(tmp_path: Path) -> None:
    """A GRU of PyTorch has two biases, and one without `reset_after` takes one."""

    def model(reset_after: bool) -> keras.Model:
        x = keras.Input((5, 6))
        y = layers.GRU(4, reset_after=reset_after, return_sequences=True, name="rnn")(x)
        return keras.Model(x, layers.Dense(3, name="head")(y))

    known, values = with_values(lambda: model(True))
    x = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    bias = values["rnn/gru_cell/bias"]
    tensors = {
        "rnn.weight_ih_l0": values["rnn/gru_cell/kernel"].T, "rnn.bias_ih_l0": bias[0],
        "rnn.weight_hh_l0": values["rnn/gru_cell/recurrent_kernel"].T, "rnn.bias_hh_l0": bias[1],
        "head.weight": values["head/kernel"].T, "head.bias": values["head/bias"],
    }  # fmt: skip
    source, file = written(tmp_path, tensors, recorded(known, x))
    proposal = runner.propose(model(False), source, reference=file)
    assert not proposal.is_certain
    assert any("make the GRU with reset_after" in str(one) for one in proposal.plan.problems)
    assert any("of 5 are not decided" in str(one) for one in proposal.doubts())


def test_a_hint_is_no_part_of_an_expression_and_a_constant_is_named() -> None:
    """Parts of one tensor have no word in which they differ."""
    parts = tuple(Taken(("fused",), cut=f"split(2, {n})") for n in (0, 1))
    pairs = {
        "a/kernel": Pair("a/kernel", parts[0], (), parts),
        "b/bias": Pair(
            "b/bias", Taken(("x.bias",)), (), (Taken(("x.bias",)), Taken((), step="zeros()"))
        ),
    }
    text = document(
        {},
        {
            "m": Correspondence.of(
                [*pairs], ["fused", "x.bias"], pairs=pairs, constants={}, layout=""
            )
        },
    )
    assert "x.bias or zeros()" in text
    assert "--hint 'fused" not in text
    assert "--hint 'x=b'" in text


def upsampled() -> keras.Model:
    """Transposed convolutions, of which all channels are alike."""
    y = x = keras.Input((3, 3, 4))
    for name in ("a", "b"):
        y = layers.Conv2DTranspose(4, 3, 2, padding="same", activation="tanh", name=name)(y)
    return keras.Model(x, layers.Dense(2, name="head")(y))


@pytest.mark.parametrize("is_turned", [True, False])
def test_reversed_kernels_of_transposed_convolutions_are_found(
    is_turned: bool, tmp_path: Path
) -> None:
    """As Flax has them, and Haiku, which does not exchange inputs and outputs."""
    model, values = with_values(upsampled)
    x = np.random.default_rng(0).normal(size=(2, 3, 3, 4)).astype(np.float32)
    tensors = {f"params/{name}": value for name, value in values.items()}
    for name in ("a", "b"):
        kernel = values[f"{name}/kernel"][::-1, ::-1]
        tensors[f"params/{name}/kernel"] = kernel.swapaxes(2, 3) if is_turned else kernel
    assert_decided(upsampled(), written(tmp_path, tensors, recorded(model, x)))


def fused() -> keras.Model:
    """Attention of two heads whose query, key and value are one layer."""
    x = keras.Input((5, 6))
    parts = keras.ops.split(layers.Dense(18, name="qkv")(x), 3, -1)
    return keras.Model(x, layers.Dense(4, name="o")(two_heads(parts)))


@pytest.mark.parametrize("is_turned", [True, False])
@pytest.mark.parametrize("names", [("q", "k", "v"), ("m2", "m0", "m1")])
def test_modules_that_a_layer_of_the_model_fuses_are_found(
    names: tuple[str, ...], is_turned: bool, tmp_path: Path
) -> None:
    """Outputs are first in the file, as PyTorch's, or last, as JAX's."""
    model, values = with_values(fused)
    x = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    reference = recorded(model, x)
    parts = zip(
        names,
        np.split(values["qkv/kernel"], 3, 1),
        np.split(values["qkv/bias"], 3),
        np.split(reference.pop("activations/qkv"), 3, -1),
        strict=True,
    )
    tensors = {"o.weight": values["o/kernel"], "o.bias": values["o/bias"]}
    for name, kernel, bias, record in sorted(parts):
        tensors |= {f"{name}.weight": kernel, f"{name}.bias": bias}
        reference[f"activations/{name}"] = record
    tensors = {name: value.T if is_turned else value for name, value in tensors.items()}
    assert_decided(fused(), written(tmp_path, tensors, reference))


def test_a_layer_that_differs_itself_decides_on_what_is_before_it(tmp_path: Path) -> None:
    """Its epsilon is another one, and the names of two parameters are exchanged."""
    model, values = with_values(attending)
    x = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    names = {"query": "wo", "key": "wk", "value": "wv", "output_kernel": "wq"}
    tensors = {}
    for path, value in values.items():
        layer, leaf = path.split("/")
        end = {"kernel": "weight", "gamma": "weight", "beta": "bias"}.get(leaf, leaf)
        tensors[f"{layer}.{names.get(leaf, end)}"] = value.T if leaf == "kernel" else value
    files = written(tmp_path, tensors, recorded(model, x))
    proposal = runner.propose(attending(epsilon=1e-3), files[0], reference=files[1])
    assert [*proposal.plan.problems] == []
    (correspondence,) = proposal.correspondences.values()
    assert correspondence.undecided == ()
    taken = {name: pair.taken.tensors for name, pair in correspondence.pairs.items()}
    assert taken["attention/query"] == ("attention.wo",)
    assert taken["attention/output_kernel"] == ("attention.wq",)
    assert proposal.proof is not None
    assert not proposal.proof.agrees
    assert "first layer that differs: norm" in "\n".join(proposal.proof.lines())


def added(activation: str | None = None) -> keras.Model:
    """Two layers whose sum alone is read."""
    x = keras.Input((6,))
    y = layers.Dense(6, name="a")(x) + layers.Dense(6, name="b")(x)
    return keras.Model(x, layers.Dense(3, activation, name="last")(y))


@pytest.mark.parametrize("activation", [None, "relu"])
def test_a_map_that_is_open_is_proven_with_the_nearest_tensors(
    activation: str | None, tmp_path: Path
) -> None:
    model, values = with_values(added)
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)

    def renamed(key: str) -> str:
        return re.sub(r"\b[ab]\b", lambda match: {"a": "right", "b": "left"}[match[0]], key)

    tensors = {renamed(path).replace("/", "."): value for path, value in values.items()}
    reference = {renamed(key): value for key, value in recorded(model, x).items()}
    files = written(tmp_path, tensors, reference)
    proposal = runner.propose(added(activation), files[0], reference=files[1])
    assert proposal.plan.problems
    assert not proposal.is_certain
    assert proposal.proof is not None
    assert proposal.proof.agrees == (activation is None)


class Rotated(layers.Layer):
    """Adds what it computes of places and frequencies, which no file holds, and a product."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.activation = "tanh"  # The name alone, as some layers hold it.

    def build(self, shape: Any) -> None:
        size = shape[-1]
        self.kernel = self.add_weight(name="kernel", shape=(size, size))
        self.places = self.add_weight(name="places", shape=(5, 1), dtype="int32", trainable=False)
        self.frequencies = self.add_weight(
            name="frequencies", shape=(size,), initializer="ones", trainable=False
        )

    def call(self, x: Any) -> Any:
        turned = keras.ops.sin(keras.ops.cast(self.places, x.dtype) * self.frequencies)
        return keras.ops.tanh(x @ self.kernel) + turned


def rotated() -> keras.Model:
    x = keras.Input((5, 6))
    return keras.Model(x, layers.Dense(5, name="head")(Rotated(name="rotated")(x)))


def test_what_a_model_computes_when_it_is_built_needs_no_tensor(tmp_path: Path) -> None:
    """A tensor of the shape of its integers is none of them."""
    model = rotated()
    random, x = np.random.default_rng(0), np.ones((3, 5, 6), np.float32)
    for variable in model.trainable_variables:
        variable.assign(random.normal(size=variable.shape))
    x *= random.normal(size=x.shape)
    tensors = {"rotated.kernel": model.trainable_variables[0].numpy()}
    tensors |= {"head.weight": model.trainable_variables[1].numpy().T}
    tensors |= {"head.bias": model.trainable_variables[2].numpy()}
    assert_decided(rotated(), written(tmp_path, tensors, recorded(model, x)))
