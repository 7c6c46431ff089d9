"""The rename that finds all that is missing."""

from __future__ import annotations

import random

import pytest

from runner.restoration.patterns import Renames
from runner.restoration.suggestions import Search, suggest

LAYERS = [f"cnn/conv{number}/{leaf}" for number in range(1, 4) for leaf in ("kernel", "bias")]


def ask(
    missing: list[str], tensors: list[str], kept: list[str] | None = None
) -> dict[str, str] | None:
    found = suggest(Search(missing, kept or [], dict.fromkeys(tensors), lambda name, tensor: True))
    if found is not None:
        mapped = [Renames(found).apply(name) for name in missing]
        assert len(set(mapped)) == len(missing), "two variables share a tensor"
        assert set(mapped) <= set(tensors), "a rule maps to no tensor"
    return found


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("cnn/", "features/", {"cnn/": "features/"}),
        ("cnn/", "model/backbone/", {"cnn/": "model/backbone/"}),
        ("cnn/", "", {"cnn/": ""}),
        ("cnn/conv", "cnn/Conv_", {r"re:(.*)conv(.*)": r"\1Conv_\2"}),
    ],
)
def test_one_changed_prefix_is_one_rule(old: str, new: str, expected: dict[str, str]) -> None:
    tensors = [name.replace(old, new, 1) for name in LAYERS]
    assert ask(LAYERS, [*tensors, "other/kernel"]) == expected


def test_a_prefix_that_the_model_lacks() -> None:
    tensors = [f"model/{name}" for name in LAYERS]
    assert ask(LAYERS, tensors) == {"cnn/": "model/cnn/"}
    names = ["cnn/kernel", "lstm/kernel", "scale"]
    rules = ask(names, [f"model/{name}" for name in names])
    assert rules == {"cnn/": "model/cnn/", "lstm/": "model/lstm/", "scale": "model/scale"}


def test_many_prefixes_are_one_expression() -> None:
    names = [f"{letter}/kernel" for letter in "abcde"]
    assert ask(names, [f"model/{name}" for name in names]) == {"re:(.*)": r"model/\1"}
    assert ask(names, [rf"a\1/{name}" for name in names]) == {"re:(.*)": r"a\\1/\1"}
    assert ask(names[:1], [rf"a\1/{names[0]}"]) == {"a/": r"a\1/a/"}


def test_a_rule_holds_on_to_the_names_that_are_missing() -> None:
    kept = ["body/dense/kernel", "body/dense/bias"]
    rules = ask(["head/kernel"], ["head/vars/0"], kept)
    assert rules == {"head/kernel": "head/vars/0"}
    rules = ask(["head/kernel", "head/scale"], ["head/vars/0", "head/vars/1"], kept)
    assert rules is not None
    assert list(rules) == ["head/kernel", "head/scale"]


def test_names_that_are_found_are_left_alone() -> None:
    tensors = [f"model/{name}" for name in LAYERS]
    rules = ask(LAYERS, tensors, kept=["head/kernel"])
    assert rules is not None
    assert Renames(rules).apply("head/kernel") == "head/kernel"


@pytest.mark.parametrize(
    "change",
    [
        lambda name: name.replace("conv", "conv_"),
        lambda name: name.replace("conv", "block/conv"),
        lambda name: name.replace("cnn/", "net/").replace("kernel", "w/k").replace("bias", "w/b"),
        lambda name: name.replace("cnn", "features").replace("conv", "c"),
        lambda name: name.replace("kernel", "weight").replace("/", "."),
        lambda name: name.replace("cnn/conv", "layers."),
        lambda name: "ckpt/" + name.replace("conv", "layer_") + "/value",
    ],
)
def test_regular_changes_are_found(change: object) -> None:
    assert callable(change)
    tensors = [change(name) for name in LAYERS]
    rules = ask(LAYERS, tensors)
    assert rules is not None
    assert [Renames(rules).apply(name) for name in LAYERS] == tensors
    assert len(rules) <= 2


def test_a_digit_after_a_group_is_no_part_of_its_number() -> None:
    missing = [f"net/layer{number}/kernel" for number in "abc"]
    tensors = [f"net/layer{number}2/kernel" for number in "abc"]
    rules = ask(missing, tensors)
    assert rules is not None
    assert [Renames(rules).apply(name) for name in missing] == tensors


def test_irregular_names_get_no_rule() -> None:
    assert ask(LAYERS, ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]) is None
    assert ask(LAYERS, []) is None
    assert ask(LAYERS, [name.replace("cnn", "net") for name in LAYERS[:-1]]) is None
    shuffled = [f"w{letter}/{random.Random(letter).random()}" for letter in "abcdef"]
    assert ask(LAYERS, shuffled) is None


def test_tensors_that_do_not_fit_are_not_proposed() -> None:
    search = Search(["a/kernel"], [], {"b/kernel": None}, lambda name, tensor: False)
    assert suggest(search) is None


def test_random_prefixes_and_suffixes_are_always_found() -> None:
    choose = random.Random(11)
    words = ["enc", "dec", "block", "attn", "mlp", "norm"]
    for _ in range(30):
        path = "/".join(choose.sample(words, choose.randrange(1, 3)))
        missing = [f"{path}/layer_{number}/kernel" for number in range(choose.randrange(2, 9))]
        new = "/".join(choose.sample(words, choose.randrange(1, 4)))
        ending = choose.choice(["", "/value", "_0"])
        tensors = [f"{new}/{name.removeprefix(path + '/')}{ending}" for name in missing]
        if set(tensors) == set(missing):
            continue
        rules = ask(missing, tensors)
        assert rules is not None
        assert [Renames(rules).apply(name) for name in missing] == tensors
