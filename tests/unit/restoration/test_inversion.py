"""Values of variables as tensors of the checkpoint that they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import runner
from runner.errors import ConfigError, PlanError
from runner.rules.steps import FUNCTIONS, STEPS
from tests.support.plans import Shape, checkpoint, one, scaffold, source_of, variable

Values = dict[str, np.ndarray[Any, Any]]


def tensors(shapes: dict[str, Shape], seed: int = 0) -> Values:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def piece(expression: str, shape: Shape, shapes: dict[str, Shape]) -> Any:
    plan = one([variable("w", shape)], scaffold(rules={"w": expression}), checkpoint(shapes=shapes))
    assert not plan.problems, str(plan.problems[0])
    return source_of(plan, "w")


T: dict[str, Shape] = {"t": (4, 6)}
TU: dict[str, Shape] = {"t": (4, 6), "u": (4, 6)}
INVERTIBLE = [
    ("t", (4, 6), T),
    ("t | transpose", (6, 4), T),
    ("t | linear", (6, 4), T),
    ("t | flip(0) | transpose", (6, 4), T),
    ("t | reshape", (3, 8), T),
    ("t | linear | unflatten(2, 3)", (6, 4), T),
    ("t | linear | einsum_dense", (4, 2, 3), T),
    ("t | [2:]", (2, 6), T),
    ("t | [1] | scale(2)", (6,), T),
    ("t | split(3, 2, axis=1)", (4, 2), T),
    ("t | pad(1, 1)", (6, 6), T),
    ("concat(t | [1:], u, axis=0)", (7, 6), TU),
    ("stack(t, u, axis=-1)", (4, 6, 2), TU),
    ("t | torch_conv", (3, 2, 4), {"t": (4, 2, 3)}),
    ("t | depthwise", (3, 2, 2), {"t": (4, 1, 3)}),
]


@pytest.mark.parametrize(("expression", "shape", "shapes"), INVERTIBLE)
def test_an_expression_and_its_inverse(
    expression: str, shape: Shape, shapes: dict[str, Shape]
) -> None:
    source, way = tensors(shapes), piece(expression, shape, shapes)
    value = way.convert([source[name] for name in way.names])
    unchanged = dict(source)
    way.invert(value, unchanged)
    assert all((unchanged[name] == source[name]).all() for name in source)
    # What a pad adds is in no tensor.
    trained = value * 2 if "pad" in expression else tensors({"w": shape}, seed=1)["w"]
    changed = dict(source)
    way.invert(trained, changed)
    np.testing.assert_array_equal(way.convert([changed[name] for name in way.names]), trained)
    assert {name: changed[name].shape for name in changed} == shapes


def test_a_sum_and_weight_norm_are_turned_back_but_for_rounding() -> None:
    norm: dict[str, Shape] = {"g": (4, 1), "v": (4, 6)}
    for expression, shapes in (("sum(t, u)", TU), ("weight_norm(g, v)", norm)):
        source, way = tensors(shapes), piece(expression, (4, 6), shapes)
        unchanged = dict(source)
        way.invert(way.convert([source[name] for name in way.names]), unchanged)
        assert all((unchanged[name] == source[name]).all() for name in source)
        trained = tensors({"w": (4, 6)}, seed=1)["w"]
        way.invert(trained, source)
        again = way.convert([source[name] for name in way.names])
        np.testing.assert_allclose(again, trained, rtol=1e-5, atol=1e-6)


LOSSY = [
    ("t | mean(0)", (1, 6)),
    ("t | sum(1)", (4, 1)),
    ("t | repeat(5, 0)", (5, 6)),
    ("t | interpolate(3, 3)", (9, 6)),
]


@pytest.mark.parametrize(("expression", "shape"), LOSSY)
def test_what_has_no_inverse_is_turned_back_only_if_it_did_not_change(
    expression: str, shape: Shape
) -> None:
    source, way = tensors(T), piece(expression, shape, T)
    value = way.convert([source["t"]])
    way.invert(value, source)
    with pytest.raises(ValueError, match="has no inverse"):
        way.invert(value + 1, source)


def test_every_step_and_function_is_inverted_somewhere() -> None:
    shown = " ".join([*(row[0] for row in INVERTIBLE), *(row[0] for row in LOSSY)])
    shown += " slice sum weight_norm zeros ones tokens"
    assert [name for name in (*STEPS, *FUNCTIONS) if name not in shown] == []


def qkv_model() -> keras.Model:
    inputs = keras.Input((5, 4))
    layer = keras.layers.MultiHeadAttention(2, 2, name="mha")
    return keras.Model(inputs, keras.layers.Dense(3, name="fc")(layer(inputs, inputs)))


SHAPES: dict[str, Shape] = {
    "attn.c_attn.weight": (4, 12),
    "attn.c_attn.bias": (12,),
    "attn.c_proj.weight": (4, 4),
    "attn.c_proj.bias": (4,),
    "fc.weight": (3, 4),
    "fc.bias": (3,),
    "count": (),
}
RULES = {
    "mha/query/": "attn.c_attn. | split(3, 0, axis=-1) | conv1d_gpt2",
    "mha/key/": "attn.c_attn. | split(3, 1, axis=-1) | conv1d_gpt2",
    "mha/value/": "attn.c_attn. | split(3, 2, axis=-1) | conv1d_gpt2",
    "mha/attention_output/": "attn.c_proj. | conv1d_gpt2",
    "fc/": "fc. | torch",
}


def test_a_trained_model_goes_back_under_the_names_of_its_source(tmp_path: Path) -> None:
    source = tensors(SHAPES)
    source["fc.weight"] = source["fc.weight"].astype(ml_dtypes.bfloat16)
    safetensors.numpy.save_file(source, tmp_path / "gpt.safetensors")
    model = qkv_model()
    keys = {"variables": {"include": ["*"]}, "checkpoint": str(tmp_path / "gpt.safetensors")}
    plan = runner.warm_start(model, {"gpt": {**keys, "rules": RULES}})
    back = plan.invert(model)
    assert back.keys() == source.keys()
    for name, value in source.items():
        assert back[name].dtype == value.dtype
        np.testing.assert_array_equal(back[name], value)
    safetensors.numpy.save_file(back, tmp_path / "back.safetensors")
    query = np.ones((4, 2, 2), np.float32)
    changed = plan.invert({"mha/query/kernel": query})["attn.c_attn.weight"]
    np.testing.assert_array_equal(changed[:, :4], query.reshape(4, 4))
    np.testing.assert_array_equal(changed[:, 4:], source["attn.c_attn.weight"][:, 4:])


def test_what_cannot_be_turned_back_is_refused(tmp_path: Path) -> None:
    source = tensors({"one": (4, 6), "mean": (1, 6)})
    np.savez(tmp_path / "source.npz", **dict[str, Any](source))
    names = ("a", "b", "mean")
    model = {name: keras.Variable(np.zeros((4, 6), np.float32), name=name) for name in names}
    model["mean"] = keras.Variable(np.zeros((1, 6), np.float32), name="mean")
    rules = {"{a}": "one", "mean": "one | mean(0)"}
    keys = {"variables": {"include": ["*"]}, "checkpoint": str(tmp_path / "source.npz")}
    plan = runner.warm_start(model, {"net": {**keys, "rules": dict(reversed(rules.items()))}})
    assert plan.invert(model)["one"].shape == (4, 6)
    model["a"].assign(np.ones((4, 6), np.float32))
    with pytest.raises(PlanError, match="a: another variable gives one another value"):
        plan.invert(model)
    with pytest.raises(PlanError, match="mean: mean along axis 0 has no inverse"):
        plan.invert({"mean": np.ones((1, 6), np.float32)})
    with pytest.raises(ConfigError, match="c is no variable of the plan"):
        plan.invert({"c": np.ones(3)})
    with pytest.raises(ConfigError, match="nothing is restored from a scaffold 'other'"):
        plan.invert(model, "other")
