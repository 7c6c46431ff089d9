"""Codes of quantized weights never become a float variable's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from numpy.typing import NDArray

import runner
from runner.checkpoints.inspection import open_checkpoint
from runner.errors import CheckpointError, PlanError
from tests.support.plans import by_name, checkpoint, one, only, scaffold, variable

F8, INT8, UINT8 = ml_dtypes.float8_e4m3fn, np.int8, np.uint8
# Tool -> the tensors that it writes for a weight `a.weight`, and the layout's name in the error.
LAYOUTS: dict[str, tuple[dict[str, Any], str]] = {
    "vLLM": ({"weight": F8, "weight_scale": np.float32}, "float8 with a scale"),
    "DeepSeek": ({"weight": F8, "weight_scale_inv": np.float32}, "float8 with a scale"),
    "ComfyUI": ({"weight": F8, "scale_weight": np.float32}, "float8 with a scale"),
    "bitsandbytes int8": ({"weight": INT8, "SCB": np.float32}, "bitsandbytes int8"),
    "bitsandbytes int8 of transformers": (
        {"weight": INT8, "weight.SCB": np.float32, "weight_format": UINT8},
        "bitsandbytes int8",
    ),
    "bitsandbytes nf4": (
        {
            "weight": UINT8,
            "weight.absmax": UINT8,
            "weight.quant_map": np.float32,
            "weight.quant_state.bitsandbytes__nf4": UINT8,
        },
        "bitsandbytes 4-bit",
    ),
    "GPTQ": (
        {"qweight": np.int32, "qzeros": np.int32, "scales": np.float16, "g_idx": np.int32},
        "GPTQ",
    ),
    "AWQ": ({"qweight": np.int32, "qzeros": np.int32, "scales": np.float16}, "GPTQ or AWQ"),
    "compressed-tensors": (
        {"weight_packed": np.int32, "weight_scale": np.float16, "weight_shape": np.int64},
        "compressed-tensors",
    ),
    "compressed-tensors int8": ({"weight": INT8, "weight_scale": np.float32}, "codes with scales"),
    "quanto": ({"weight._data": INT8, "weight._scale": np.float32}, "quanto"),
    "torchao": ({"weight_qdata": INT8, "weight_scale": np.float32}, "torchao"),
    "NVFP4": ({"weight": UINT8, "weight_scale": F8, "weight_scale_2": np.float32}, "NVFP4"),
    "MXFP4": ({"weight_blocks": UINT8, "weight_scales": UINT8}, "MXFP4"),
    "HQQ": ({"W_q": UINT8, "scale": np.float16, "zero": np.float16}, "HQQ"),
    "EETQ": ({"weight": INT8, "weight_scales": np.float16}, "codes with scales"),
    "MLX": ({"weight": np.uint32, "scales": np.float16, "biases": np.float16}, "codes with scales"),
}


def saved(path: Path, arrays: dict[str, NDArray[Any]]) -> str:
    safetensors.numpy.save_file(arrays, path)
    return str(path)


@pytest.mark.parametrize("keys", [{}, {"cast": True}, {"missing": "init"}, {"shape": "init"}])
@pytest.mark.parametrize("tool", LAYOUTS)
def test_the_layouts_of_tools_are_refused_by_name(
    tool: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    types, layout = LAYOUTS[tool]
    arrays = {f"a.{name}": np.ones((2, 2), dtype) for name, dtype in types.items()}
    path = saved(tmp_path / "m.safetensors", arrays)
    rules = {"variables": {"include": ["w"]}, "checkpoint": path, "rename": {"w": "a.weight"}}
    weight = tf.Variable(np.full((2, 2), 0.5, np.float32))
    with pytest.raises(PlanError, match=rf"a.weight is quantized \(.*{layout}") as caught:
        runner.warm_start({"w": weight}, {"net": {**rules, **keys}})
    (problem,) = caught.value.problems
    assert "dequantize" in problem.remedy
    assert "cast=true" not in str(problem)
    np.testing.assert_array_equal(weight.numpy(), 0.5)


@pytest.mark.parametrize("ends", [("_blocks", "_scales"), ("_packed", "_scale"), (".absmax",)])
def test_codes_of_any_name_are_recognised(ends: tuple[str, ...]) -> None:
    source = checkpoint(*(f"experts.gate_up_proj{end}" for end in ends), dtype="uint8")
    config = scaffold(rename={"w": "experts.gate_up_proj"})
    assert "experts.gate_up_proj is quantized" in only(one([variable("w")], config, source)).state
    source = checkpoint("a.qweight", "a.qzeros", "a.scales")
    problem = only(one([variable("w")], scaffold(rename={"w": "a.bias"}), source))
    assert "some of its weights are quantized (GPTQ or AWQ)" in problem.cause


CODES = ["int8", "uint8", "int4", "int16", "int32", "int64", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("new", ["float32", "bfloat16", "complex64"])
@pytest.mark.parametrize("old", CODES)
def test_a_float_takes_codes_only_by_a_rule_that_says_how(old: str, new: str, cast: bool) -> None:
    source = checkpoint("w", dtype=old)
    problem = only(one([variable("w", dtype=new)], scaffold(cast=cast), source))
    assert problem.state == f"scaffolds.net: w is {new}, but its tensor is {old}"
    assert "cast=true" not in problem.remedy
    assert problem.choices == ('rules: {"w": "w | scale(1)"}',)
    moved = scaffold(cast=cast, rules={"w": "w | transpose | transpose"})
    assert only(one([variable("w", dtype=new)], moved, source)).state == problem.state
    plan = one([variable("w", dtype=new)], scaffold(rules={"w": "w | scale(0.5)"}), source)
    assert not plan.problems
    assert by_name(plan)["w"].notes == (f"{old} cast to {new}",)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("w | scale(0.3)", [0.9, 1.8]),
        ("w | scale(100)", [300, 600]),
        ("sum(w, w, w) | scale(1)", [9, 18]),
        ("w | scale(1) | pad(1, 0, value=0.3)", [0.3, 3, 6]),
        ("w | sum(0) | scale(2.5)", [22.5]),
    ],
)
def test_codes_are_computed_with_in_a_wide_type(
    dtype: str, rule: str, expected: list[float], tmp_path: Path
) -> None:
    codes = np.array([3, 6], getattr(ml_dtypes, dtype, dtype))
    path = saved(tmp_path / "w.safetensors", {"w": codes})
    weight = tf.Variable(np.zeros(len(expected), np.float32))
    rules = {"variables": {"include": ["w"]}, "checkpoint": path, "rules": {"w": rule}}
    runner.warm_start({"w": weight}, {"net": rules})
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-6)


def test_a_variable_of_codes_takes_codes() -> None:
    source = checkpoint("w", "w_scale", dtype="int8")
    assert not one([variable("w", dtype="int8")], scaffold(), source).problems


def test_a_scale_beside_plain_weights_is_another_parameter() -> None:
    source = checkpoint("a.weight", "a.weight_scale", "a.scale")
    config = scaffold(rename={"w": "a.weight"})
    assert not one([variable("w")], config, source).problems
    source = checkpoint("a.scale", "a.other")
    assert only(one([variable("w")], config, source)).state.startswith("scaffolds.net: no tensor")


# Halves, whose sum in bfloat16 is the first.
A, B = (float(ml_dtypes.bfloat16(value)) for value in (1.0078125, 0.001))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("sum(a, b)", A + B), ("b | scale(0.1)", B * 0.1), ("weight_norm(a, b)", A)],
)
def test_halves_are_computed_with_in_the_type_of_the_variable(
    rule: str, expected: float, tmp_path: Path
) -> None:
    arrays = {"a": np.array([A], ml_dtypes.bfloat16), "b": np.array([B], ml_dtypes.bfloat16)}
    weight = tf.Variable(np.zeros(1, np.float32))
    path = saved(tmp_path / "m.safetensors", arrays)
    rules = {"variables": {"include": ["w"]}, "checkpoint": path, "rules": {"w": rule}}
    plan = runner.warm_start({"w": weight}, {"net": rules})
    np.testing.assert_allclose(weight.numpy(), [expected], rtol=1e-6)
    assert plan.assignments[0].notes == ("bfloat16 cast to float32",)


@pytest.mark.parametrize("rule", ["zeros()", "ones()"])
def test_constants_have_the_type_of_the_variable(rule: str, tmp_path: Path) -> None:
    weight = tf.Variable(np.full(2, 3, np.float16))
    path = saved(tmp_path / "m.safetensors", {"a": np.zeros(1, np.float32)})
    rules = {"variables": {"include": ["w"]}, "checkpoint": path, "rules": {"w": rule}}
    runner.warm_start({"w": weight}, {"net": rules})
    np.testing.assert_array_equal(weight.numpy(), [float(rule == "ones()")] * 2)


def test_an_imaginary_part_is_not_dropped(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", real=np.array([1 + 0j]), complex=np.array([1 + 2j]))
    for name, values in (("real", [1.0]), ("complex", None)):
        weight = tf.Variable(np.zeros(1, np.float32))
        rules = {"variables": {"include": ["w"]}, "checkpoint": tmp_path / "m.npz", "cast": True}
        scaffolds = {"net": {**rules, "rename": {"w": name}}}
        if values is None:
            with pytest.raises(CheckpointError, match="complex values have no place in float32"):
                runner.warm_start({"w": weight}, scaffolds)
        else:
            runner.warm_start({"w": weight}, scaffolds)
            np.testing.assert_array_equal(weight.numpy(), values)


@pytest.mark.parametrize("magic", [b"GGUF", b"ggjt"])
def test_models_of_llama_cpp_are_refused(magic: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(magic + bytes(64))
    with pytest.raises(CheckpointError, match=r"a model for llama\.cpp"):
        open_checkpoint(tmp_path / "m.gguf")


PARTS: dict[str, tuple[list[str], list[str]]] = {
    # The tensors, and the rules that take a part of the weight for the weight.
    "weight norm": (["a.weight_g", "a.weight_v"], ["a.weight_v", "a.weight_g | reshape"]),
    "weight norm of parametrizations": (
        [f"a.parametrizations.weight.original{at}" for at in (0, 1)],
        [f"a.parametrizations.weight.original{at}" for at in (0, 1)],
    ),
    "spectral norm": (["a.weight_orig", "a.weight_u", "a.weight_v"], ["a.weight_orig"]),
    "a parametrization": (
        ["a.parametrizations.weight.original", "a.parametrizations.weight.0._u"],
        ["a.parametrizations.weight.original"],
    ),
    "pruned": (["a.weight_orig", "a.weight_mask"], ["a.weight_orig"]),
    "pruned bias": (["a.bias_orig", "a.bias_mask"], ["a.bias_orig"]),
}


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_of_a_weight_is_not_the_weight(kind: str) -> None:
    tensors, rules = PARTS[kind]
    for rule in rules:
        plan = one([variable("w")], scaffold(rules={"w": rule}), checkpoint(*tensors))
        problem = only(plan)
        assert "which is not the weight" in problem.state
        assert "keeps the weight in parts" in problem.cause
    whole = scaffold(rules={"w": f"weight_norm({tensors[0]}, {tensors[1]})"})
    if "weight norm" in kind:
        assert not one([variable("w")], whole, checkpoint(*tensors)).problems


def test_a_layer_is_not_taken_without_its_adapter() -> None:
    names = ("q.base_layer.weight", "q.lora_A.default.weight", "q.lora_B.default.weight")
    rename = dict(zip(("w", "a", "b"), names, strict=True))
    source = checkpoint(*names)
    problem = only(one([variable("w")], scaffold(rename={"w": names[0]}), source))
    assert problem.state == f"scaffolds.net: adapters are left out, such as {names[1]}"
    everything = [variable(name) for name in rename]
    assert not one(everything, scaffold(rename=rename), source).problems
