"""The map pairs the variables of public models with the tensors of public files."""

from __future__ import annotations

import pytest

from benchmarks.maps import LISTS, load, score

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


def test_layers_of_llama_that_mislead_by_name_are_flagged_with_what_speaks_against() -> None:
    names = load(LISTS / "hugging_face-llama-kerashub.json.gz")
    pair = names.correspondence().pairs["transformer_layer_0/feedforward_layernorm/scale"]
    assert {option.tensors[0].split(".")[-2] for option in pair.candidates} == {
        "input_layernorm",
        "post_attention_layernorm",
    }
