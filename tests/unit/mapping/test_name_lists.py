"""The map pairs the variables of public models with the tensors of public files."""

from __future__ import annotations

import pytest

from runner.mapping.correspondence import correspond
from tests.samples.name_lists import LISTS, load, score

# List -> how many of its variables are flagged.
PLAIN = {
    "torchvision-resnet50-keras.applications": 0,
    "torchvision-efficientnet_b0-keras.applications": 0,
    "timm-vgg16-keras.applications": 0,
    "tf1-slim-mobilenet_v2-keras.applications": 0,
    "tf1-bert-kerashub": 0,
    "hugging_face-bert-kerashub": 0,
    "hugging_face-gpt2-kerashub": 0,
    "hugging_face-t5-kerashub": 0,
    "hugging_face-whisper-kerashub": 0,
    "keras-densenet121-keras_hub": 0,
    "pytorch-lstm-keras": 0,
    # Norms in front of attention and behind it, whose words mislead.
    "hugging_face-llama-kerashub": 24,
    # The norm behind all blocks is `model.norm`, which has no word that tells it apart.
    "hugging_face-mistral-kerashub": 0,
}


@pytest.mark.parametrize("name", PLAIN)
def test_pairs_are_right_and_few_are_flagged(name: str) -> None:
    names = load(LISTS / f"{name}.json.gz")
    counts = score(names, names.correspondence())
    assert (counts["wrong"], counts["missed"]) == (0, 0)
    assert counts["flagged"] == counts["inside"] <= PLAIN[name]


@pytest.mark.parametrize("change", ["shuffled", "nonsense"])
@pytest.mark.parametrize("name", [*PLAIN][::2])
def test_no_pair_is_wrong_whatever_the_words_and_the_order(name: str, change: str) -> None:
    names = load(LISTS / f"{name}.json.gz").changed(change, seed=7)
    counts = score(names, names.correspondence())
    assert counts["wrong"] == 0
    assert counts["inside"] >= 0.95 * counts["flagged"]


def test_layers_of_llama_that_mislead_by_name_are_flagged() -> None:
    names = load(LISTS / "hugging_face-llama-kerashub.json.gz")
    pair = names.correspondence().pairs["transformer_layer_0/feedforward_layernorm/scale"]
    assert {option.tensors[0].split(".")[-2] for option in pair.candidates} == {
        "input_layernorm",
        "post_attention_layernorm",
    }


def _denses(*names: str) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys((f"{name}kernel" for name in names), (64, 64))


def test_a_layer_without_a_number_may_come_last() -> None:
    variables = _denses("dense/", "dense_1/", "dense_2/")
    tensors = {f"{name}.weight": (64, 64) for name in ("fc1", "fc2", "fc")}
    pairs = correspond(variables, tensors, ordered=True).pairs
    assert not any(pair.is_certain for pair in pairs.values())
    again = correspond(variables, {**variables}).pairs
    assert all(pair.is_certain and pair.taken.tensors == (name,) for name, pair in again.items())


@pytest.mark.parametrize("first", ["mlp", "attention"])
def test_norms_are_paired_in_the_order_of_definition_not_by_the_usual_one(first: str) -> None:
    second = "attention" if first == "mlp" else "mlp"
    leaves = [("norm_1", (8,)), ("norm_2", (8,)), ("mlp/dense", (8, 32)), ("attention/out", (8, 8))]
    variables, tensors = dict[str, tuple[int, ...]](), dict[str, tuple[int, ...]]()
    for block in range(3):
        for name, shape in leaves:
            end = "kernel" if len(shape) > 1 else "gamma"
            variables[f"block_{block}/{name}/{end}"] = shape
        tensors[f"h.{block}.ln_{first}.weight"] = tensors[f"h.{block}.ln_{second}.weight"] = (8,)
        tensors[f"h.{block}.mlp.dense.weight"] = (32, 8)
        tensors[f"h.{block}.attention.out.weight"] = (8, 8)
    pair = correspond(variables, tensors, ordered=True).pairs["block_1/norm_1/gamma"]
    assert pair.taken.tensors == (f"h.1.ln_{first}.weight",)


def test_decoders_numbered_against_their_order_are_flagged() -> None:
    variables, tensors = dict[str, tuple[int, ...]](), dict[str, tuple[int, ...]]()
    for at in range(4):
        variables[f"decoder_{3 - at}/conv/kernel"] = (3, 3, 64, 32)
        tensors[f"ups.{at}.conv.weight"] = (32, 64, 3, 3)
    assert not any(
        pair.is_certain for pair in correspond(variables, tensors, ordered=True).pairs.values()
    )


def test_a_layer_of_a_head_that_the_model_lacks_is_flagged() -> None:
    variables, tensors = dict[str, tuple[int, ...]](), dict[str, tuple[int, ...]]()
    for at in range(2):
        for name in ("query", "key"):
            variables[f"block_{at}/{name}/kernel"] = (8, 8)
            tensors[f"layer.{at}.{name}.weight"] = (8, 8)
    variables["pooler/kernel"] = tensors["head.transform.dense.weight"] = (8, 8)
    alone = correspond(variables, tensors).pairs
    assert all(pair.is_certain for pair in alone.values())
    # The model has no other layer of this head.
    tensors["head.transform.norm.weight"] = (7,)
    pairs = correspond(variables, tensors).pairs
    assert [name for name, pair in pairs.items() if not pair.is_certain] == ["pooler/kernel"]


def test_numbers_of_any_length_are_compared() -> None:
    names = [f"run{10**20}/layer_{at}" for at in range(3)]
    variables = {f"{name}/kernel": (8, 8) for name in names}
    tensors = {f"{name.replace('/', '.')}.weight": (8, 8) for name in names}
    pairs = correspond(variables, tensors).pairs
    assert [pair.taken.tensors for pair in pairs.values()] == [(name,) for name in tensors]
    assert all(pair.is_certain for pair in pairs.values())
