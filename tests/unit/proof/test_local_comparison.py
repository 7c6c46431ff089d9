"""A proof finds what outputs hide: exchanged tensors, a layer that differs a little."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import safetensors.numpy
from keras import layers

import runner
from tests.architectures.test_architectures import CASES, KEPT, model_of, scaffolds_of
from tests.conformance.goldens import save_npz

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

# A case, two tensors of it that are exchanged, and layers of which the proof has to name one first.
EXCHANGES = [
    ("hugging_face-bert-by_hand", "layer.0.attention.self.query", "layer.0.attention.self.key",
     "layer_0/attention/self/"),
    ("hugging_face-bert-by_hand", "layer.1.attention.self.query", "layer.1.attention.self.value",
     "layer_1/attention/self/"),
    ("hugging_face-gpt2-by_hand", "h.0.ln_1", "h.0.ln_2", "block_0/norm1"),
    ("hugging_face-llama-by_hand", "layers.0.self_attn.q_proj", "layers.0.self_attn.o_proj",
     "layer_0/wq"),
    ("hugging_face-llama-by_hand", "layers.1.mlp.gate_proj", "layers.1.mlp.up_proj",
     ("layer_1/w1", "layer_1/w3")),
    ("hugging_face-llama-by_hand", "layers.0.self_attn.k_proj", "layers.1.self_attn.k_proj",
     "layer_0/wk"),
    ("torchvision-resnet50", "layer1.0.conv2", "layer1.1.conv2", "stage0_block0/filter"),
    ("torchvision-resnet50", "layer1.0.bn1", "layer1.0.bn2", "stage0_block0/reduce_norm"),
]  # fmt: skip
LACKS_RMS = pytest.mark.skipif(
    not hasattr(layers, "RMSNormalization"), reason="this version of Keras has no RMSNormalization"
)
ROWS = [pytest.param(*row, marks=[LACKS_RMS] * ("llama" in row[0])) for row in EXCHANGES]


@pytest.mark.parametrize("leaves", [("weight", "bias"), ("weight",)])
@pytest.mark.parametrize(("name", "one", "two", "guilty"), ROWS)
def test_exchanged_tensors_are_found(
    name: str,
    one: str,
    two: str,
    guilty: str | tuple[str, ...],
    leaves: tuple[str, ...],
    tmp_path: Path,
) -> None:
    case = CASES[name]
    model, source = model_of(case, small=True), KEPT / f"{case['source']}.pt"
    tensors = {key: np.array(a) for key, a in runner.open_checkpoint(str(source)).items()}
    for leaf in leaves:
        for first in [key for key in tensors if key.endswith(f"{one}.{leaf}")]:
            second = first.replace(one, two)
            tensors[first], tensors[second] = tensors[second], tensors[first]
    safetensors.numpy.save_file(tensors, tmp_path / "source.safetensors")
    reference = source.with_suffix(".npz")
    plan = runner.warm_start(model, scaffolds_of(case, str(tmp_path / "source.safetensors")))
    proof = runner.prove(model, reference, plan)
    assert not proof.agrees
    assert proof.first_difference is not None
    assert proof.first_difference.layer.startswith(guilty)


def exchanged(text: str, one: str, two: str) -> str:
    return re.sub(rf"{re.escape(one)}|{re.escape(two)}", lambda m: {one: two, two: one}[m[0]], text)


@pytest.mark.parametrize(("name", "one", "two", "guilty"), ROWS)
def test_exchanged_rules_are_found_and_named(
    name: str, one: str, two: str, guilty: str | tuple[str, ...], tmp_path: Path
) -> None:
    """The names are exchanged with the records, so that each layer agrees with its own."""
    case = CASES[name]
    model, source = model_of(case, small=True), KEPT / f"{case['source']}.pt"
    tensors = {
        exchanged(key, one, two): np.array(a)
        for key, a in runner.open_checkpoint(str(source)).items()
    }
    safetensors.numpy.save_file(tensors, tmp_path / "source.safetensors")
    with np.load(source.with_suffix(".npz")) as file:
        np.savez(tmp_path / "r.npz", **{exchanged(k, one, two): file[k] for k in file.files})
    plan = runner.warm_start(model, scaffolds_of(case, str(tmp_path / "source.safetensors")))
    proof = runner.prove(model, tmp_path / "r.npz", plan)
    assert not proof.agrees
    assert proof.first_difference is not None
    assert proof.first_difference.layer.startswith(guilty)


def test_a_layer_that_differs_a_little_fails_a_proof_whose_outputs_agree(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(4, 4)).astype("f4") for _ in range(2))
    x = rng.normal(size=(6, 4)).astype("f4")
    before = x @ first.T
    after = np.asarray(keras.activations.gelu(before, approximate=False)) @ second.T
    records = {"activations/fc1": before, "activations/fc2": after}
    np.savez(tmp_path / "r.npz", inputs=x, outputs=after + 1e3 * x, **records)
    tensors = {"fc1.weight": first, "fc2.weight": second}
    safetensors.numpy.save_file(tensors, tmp_path / "w.safetensors")
    for approximate in (False, True):
        inputs = keras.Input((4,))
        hidden = layers.Dense(4, use_bias=False, name="fc1")(inputs)
        hidden = keras.ops.gelu(hidden, approximate=approximate)
        hidden = layers.Dense(4, use_bias=False, name="fc2")(hidden)
        model = keras.Model(inputs, hidden + 1e3 * inputs)
        rules = {"variables": {"include": ["*"]}, "convert": {"*": "torch"}}
        file = str(tmp_path / "w.safetensors")
        plan = runner.warm_start(model, {"w": {"checkpoint": file, **rules}})
        proof = runner.prove(model, tmp_path / "r.npz", plan)
        assert all(output.agrees for output in proof.outputs)
        assert proof.agrees != approximate
        assert proof.first_difference is None or proof.first_difference.layer == "fc2"


@pytest.mark.parametrize("inside", [True, False])
def test_what_follows_a_layer_counts(inside: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kernel, bias = rng.normal(size=(3, 4)).astype("f4"), rng.normal(size=3).astype("f4")
    x = rng.normal(size=(6, 4)).astype("f4")
    after = x @ kernel.T + bias
    act = after * np.clip(after / 6 + 0.5, 0, 1)
    np.savez(
        tmp_path / "r.npz",
        **{"inputs": x, "activations/fc": after, "activations/act": act},
        outputs=act.sum(1, keepdims=True), metadata=json.dumps({}),
    )  # fmt: skip
    safetensors.numpy.save_file({"fc.weight": kernel, "fc.bias": bias}, tmp_path / "w.safetensors")
    inputs = keras.Input((4,))
    hidden = layers.Dense(3, activation="relu" if inside else None, name="fc")(inputs)
    hidden = hidden if inside else layers.ReLU()(hidden)
    model = keras.Model(inputs, keras.ops.sum(hidden, 1, keepdims=True))
    plan = runner.warm_start(
        model,
        {"w": {"checkpoint": str(tmp_path / "w.safetensors"), "variables": {"include": ["*"]},
               "convert": {"*": "torch"}}},
    )  # fmt: skip
    proof = runner.prove(model, tmp_path / "r.npz", plan)
    assert proof.first_difference is not None
    assert proof.first_difference.layer == "fc"
    assert "hard_silu in the source" in proof.first_difference.note


# A case, rules that exchange two tensors, and the layers of which the proof has to name one first.
PLANTED = [
    ("hugging_face-gpt2-by_hand",
     {"block_0/attention/query/kernel": "h.0.attn.c_attn.weight | split(3, 2, axis=1) | reshape",
      "block_0/attention/value/kernel": "h.0.attn.c_attn.weight | split(3, 0, axis=1) | reshape"},
     {"block_0/attention/query", "block_0/attention/value"}),
    ("hugging_face-bert-by_hand",
     {"layer_0/attention/self/query/kernel": "pooler.dense.weight | linear",
      "pooler/kernel": "encoder.layer.0.attention.self.query.weight | linear"},
     {"layer_0/attention/self/query", "pooler"}),
    ("hugging_face-bert-by_hand",
     {"layer_1/attention/self/value/bias": "encoder.layer.1.attention.output.LayerNorm.weight",
      "layer_1/attention/output/LayerNorm/gamma": "encoder.layer.1.attention.self.value.bias"},
     {"layer_1/attention/self/value", "layer_1/attention/output/LayerNorm"}),
    ("hugging_face-bert-by_hand",
     {"layer_0/output/LayerNorm/beta": "encoder.layer.0.output.LayerNorm.weight",
      "layer_0/output/LayerNorm/gamma": "encoder.layer.0.output.LayerNorm.bias"},
     {"layer_0/output/LayerNorm"}),
    ("pytorch-bidirectional_lstm",
     {"bidirectional_1/forward_lstm/lstm_cell/kernel": "rnn.weight_ih_l0_reverse | torch_lstm",
      "bidirectional_1/backward_lstm/lstm_cell/kernel": "rnn.weight_ih_l0 | torch_lstm"},
     {"bidirectional_1/forward_lstm/lstm_cell", "bidirectional_1/backward_lstm/lstm_cell"}),
    ("pytorch-bidirectional_gru",
     {"bidirectional_1/forward_gru/gru_cell/recurrent_kernel": "rnn.weight_hh_l1 | torch_gru",
      "bidirectional_2/forward_gru/gru_cell/recurrent_kernel": "rnn.weight_hh_l0 | torch_gru"},
     {"bidirectional_1/forward_gru/gru_cell", "bidirectional_2/forward_gru/gru_cell"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rules", "guilty"), PLANTED)
def test_layers_without_a_record_that_have_each_others_tensors_are_named(
    name: str, rules: dict[str, str], guilty: set[str]
) -> None:
    case = CASES[name]
    model, source = model_of(case, small=True), KEPT / f"{case['source']}.pt"
    scaffolds = scaffolds_of(case, str(source))
    (scaffold,) = scaffolds.values()
    scaffold["rules"] = {**rules, **scaffold["rules"]}
    plan = runner.warm_start(model, scaffolds)
    proof = runner.prove(model, source.with_suffix(".npz"), plan)
    assert proof.first_difference is not None
    assert proof.first_difference.layer in guilty


def test_a_cause_is_found_where_the_record_is_of_the_activation_behind_a_layer() -> None:
    case = CASES["timm-mobilenetv2_100"]
    model, source = model_of(case, small=True), KEPT / f"{case['source']}.pt"
    plan = runner.warm_start(model, scaffolds_of(case, str(source)))
    (norm,) = (layer for layer in model.layers if layer.name == "stem_norm")
    values = norm.gamma.numpy(), norm.beta.numpy()
    norm.beta.assign(values[0])
    norm.gamma.assign(values[1])
    proof = runner.prove(model, source.with_suffix(".npz"), plan)
    assert {layer.layer for layer in proof.layers if not layer.agrees} == {"stem_norm"}
    assert "has two tensors exchanged: once that is undone" in str(proof.first_difference)


def test_an_exchange_that_only_the_outputs_show_is_named(tmp_path: Path) -> None:
    x = keras.Input((4,))
    one, two = layers.Dense(4, name="one")(x), layers.Dense(4, name="two")(x)
    model = keras.Model(x, layers.Dense(3, name="out")(one * keras.ops.sin(two)))
    values = {v.path: np.random.default_rng(1).normal(size=v.shape) for v in model.variables}
    for index, variable in enumerate(model.variables):
        variable.assign(values[variable.path] + index)
    tensors = {variable.path: variable.numpy() for variable in model.variables}
    safetensors.numpy.save_file(tensors, tmp_path / "source.safetensors")
    inputs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    save_npz(tmp_path / "r.npz", inputs=inputs, outputs=np.asarray(model(inputs)))
    rules = {"one/kernel": "two/kernel", "two/kernel": "one/kernel"}
    scaffold = {"variables": {"include": ["*"]}, "rules": rules}
    plan = runner.warm_start(
        model, {"all": {**scaffold, "checkpoint": str(tmp_path / "source.safetensors")}}
    )
    proof = runner.prove(model, tmp_path / "r.npz", plan)
    assert {layer.layer: layer.note for layer in proof.layers} == {
        "one": "exchanged with two: once that is undone, the output agrees",
        "two": "exchanged with one: once that is undone, the output agrees",
    }


@pytest.mark.parametrize("first", ["left", "right"])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_shared_layer_agrees_by_the_call_that_was_recorded(
    first: str, wrong: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=(4, 3)).astype("f4") for name in ("left", "right")}
    one, two = (rng.normal(size=(3, 3)).astype("f4") for _ in range(2))
    codes = {name: np.tanh(value @ one) @ two for name, value in x.items()}
    save_npz(
        tmp_path / "r.npz",
        outputs=codes["left"] - 2 * codes["right"],
        **{f"inputs/{name}": value for name, value in x.items()},
        # Of the source's first call.
        **{"activations/one": x["left"] @ one, "activations/two": codes["left"]},
    )
    tensors = {"one.weight": two if wrong else one, "two.weight": one if wrong else two}
    safetensors.numpy.save_file(tensors, tmp_path / "w.safetensors")

    class Siamese(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.one = layers.Dense(3, activation="tanh", use_bias=False, name="one")
            self.two = layers.Dense(3, use_bias=False, name="two")

        def call(self, inputs: dict[str, Any]) -> Any:
            order = sorted(inputs, reverse=first == "right")
            codes = {name: self.two(self.one(inputs[name])) for name in order}
            return codes["left"] - 2 * codes["right"]

    model = Siamese()
    model({name: np.zeros((1, 3), "f4") for name in x})
    rules = {"one/kernel": "one.weight", "two/kernel": "two.weight"}
    scaffold = {"checkpoint": str(tmp_path / "w.safetensors"), "rules": rules}
    plan = runner.warm_start(model, {"s": {**scaffold, "variables": {"include": ["*"]}}})
    proof = runner.prove(model, tmp_path / "r.npz", plan)
    assert len(proof.layers) == 2
    assert proof.agrees == (not wrong)


def test_a_causal_convolution_agrees_with_one_that_computes_steps_that_are_cut_off(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    kernel, x = rng.normal(size=(3, 2, 4)).astype("f4"), rng.normal(size=(2, 7, 2)).astype("f4")
    padded = np.pad(x, ((0, 0), (2, 2), (0, 0)))
    steps = sum(padded[:, at : at + 9] @ kernel[at] for at in range(3))
    safetensors.numpy.save_file(
        {"c.weight": kernel.transpose(2, 1, 0).copy()}, tmp_path / "w.safetensors"
    )
    model = keras.Sequential(
        [keras.Input((7, 2)), layers.Conv1D(4, 3, padding="causal", use_bias=False, name="c")]
    )
    scaffold = {"checkpoint": str(tmp_path / "w.safetensors"), "convert": {"*": "torch"}}
    scaffolds = {"s": {**scaffold, "variables": {"include": ["*"]}, "rules": {"c/": "c."}}}
    plan = runner.warm_start(model, scaffolds)
    for begin, agrees in ((0, True), (1, False)):
        records = {"activations/c": np.moveaxis(steps[:, begin:], 1, 2)}
        np.savez(tmp_path / "r.npz", inputs=x, outputs=steps[:, :7], **records)
        proof = runner.prove(model, tmp_path / "r.npz", plan)
        assert [one.agrees for one in proof.layers] == [agrees]
        assert agrees or "shapes differ" in proof.layers[0].note
