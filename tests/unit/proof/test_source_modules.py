"""Modules of a source and the layers of a model that hold the values of their tensors."""

from __future__ import annotations

import pytest

from runner.proof.source_modules import counterparts

LSTM = {
    "one/cell/kernel": [["lstm.weight_ih_l0"]],
    "one/cell/bias": [["lstm.bias_ih_l0"], ["lstm.bias_hh_l0"]],
    "two/cell/kernel": [["lstm.weight_ih_l1"]],
}

# What is shown -> modules, variable -> tensors, layer -> variables, module -> layers and if whole.
CASES = {
    "names with dots or slashes": (
        ["a.b", "c/d", "relu"],
        {"x/kernel": [["a.b.weight"]], "y/kernel": [["c/d/kernel"]]},
        {"x": ["x/kernel"], "y": ["y/kernel"]},
        {"a.b": (("x",), True), "c/d": (("y",), True)},
    ),
    "a module around others is a layer around others": (
        ["block", "block.a"],
        {"l/a/kernel": [["block.a.weight"]], "l/b/kernel": [["block.b.weight"]]},
        {"l": ["l/a/kernel", "l/b/kernel"], "l/a": ["l/a/kernel"]},
        {"block": (("l",), True), "block.a": (("l/a",), True)},
    ),
    "the file has a prefix more": (
        ["layer.a"],
        {"x/kernel": [["bert.layer.a.weight"]]},
        {"x": ["x/kernel"]},
        {"layer.a": (("x",), True)},
    ),
    "the file has a prefix less": (
        ["bert.layer.a", "head"],
        {"x/kernel": [["layer.a.weight"]]},
        {"x": ["x/kernel"]},
        {"bert.layer.a": (("x",), True)},
    ),
    "a layer and its cell hold the same, and each a part of the stack": (
        ["lstm"],
        LSTM,
        {name: [v for v in LSTM if v.startswith(name)] for name in ("one", "one/cell", "two")},
        {"lstm": (("one", "one/cell", "two"), False)},
    ),
    "a sum of two modules' tensors is no one's": (
        ["words", "types"],
        {"x/table": [["words.weight"], ["types.weight"]]},
        {"x": ["x/table"]},
        {},
    ),
    "a layer with a variable that no tensor gives is the module's": (
        ["a"],
        {"x/kernel": [["a.weight"]]},
        {"x": ["x/kernel", "x/bias"]},
        {"a": (("x",), True)},
    ),
    "a numbered tensor has an alias": (
        ["x"],
        {"x/kernel": [["layers/dense/vars/0", "x/kernel"]]},
        {"x": ["x/kernel"]},
        {"x": (("x",), True)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_layers_of_modules(case: str) -> None:
    modules, tensors, layers, expected = CASES[case]
    found = counterparts(modules, tensors, layers)
    assert {module: (part.layers, part.is_whole) for module, part in found.items()} == expected
