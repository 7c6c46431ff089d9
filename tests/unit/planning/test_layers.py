"""What `torch` is for the kinds of layers, and what is suspicious about plans that fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runner.config.choices import ShapePolicy
from runner.planning.plan import RestorationPlan
from runner.planning.report import text
from runner.rules.resampling import Interpolate
from tests.support.plans import Shape, checkpoint, one, only, origins, scaffold, variable

TORCH: dict[str, Any] = {"convert": {"*": "torch"}}
UNITS = {"kernel": (3, 16), "recurrent_kernel": (4, 16), "bias": (16,)}
RNN: dict[str, Shape] = {"weight_ih": (16, 3), "weight_hh": (16, 4)}
RNN |= {"bias_ih": (16,), "bias_hh": (16,)}


def planned(
    variables: Mapping[str, tuple[str, Shape]], tensors: dict[str, Shape], **keys: Any
) -> RestorationPlan:
    specs = [
        replace(variable(name, shape), layer=layer) for name, (layer, shape) in variables.items()
    ]
    return one(specs, scaffold(**(keys or TORCH)), checkpoint(shapes=tensors))


@pytest.mark.parametrize(
    ("variables", "tensors"),
    [
        ({"a/kernel": ("Dense", (3, 2))}, {"a.weight": (2, 3)}),
        ({"a/kernel": ("Conv2D", (5, 5, 2, 6))}, {"a.weight": (6, 2, 5, 5)}),
        ({"a/kernel": ("Conv2DTranspose", (5, 5, 6, 2))}, {"a.weight": (2, 6, 5, 5)}),
        ({"a/kernel": ("DepthwiseConv2D", (5, 5, 3, 2))}, {"a.weight": (6, 1, 5, 5)}),
        ({"a/kernel": ("DepthwiseConv1D", (5, 3, 2))}, {"a.weight": (6, 1, 5)}),
        ({"a/kernel": ("EinsumDense", (8, 2, 4))}, {"a.weight": (8, 8)}),
        ({"a/embeddings": ("Embedding", (4, 4))}, {"a.weight": (4, 4)}),
        ({"a/scale": ("RMSNormalization", (4,))}, {"a.weight": (4,)}),
        ({"a/alpha": ("PReLU", (1, 1, 4))}, {"a.weight": (4,)}),
        ({"a/gamma": ("LayerScale", (4,))}, {"a.gamma": (4, 1, 1)}),
        ({"a/cls_token": ("Tokens", (1, 1, 4))}, {"a.cls_token": (1, 1, 4)}),
        ({"a/kernel": ("Conv1D", (5, 2, 6))}, {"a.weight_g": (6, 1, 1), "a.weight_v": (6, 2, 5)}),
        (
            {"a/kernel": ("Dense", (3, 2))},
            {f"a.parametrizations.weight.original{at}": (2, (1, 3)[at]) for at in (0, 1)},
        ),
        (
            {
                f"r/{way}_lstm/lstm_cell/{leaf}": ("LSTMCell", shape)
                for way in ("forward", "backward")
                for leaf, shape in UNITS.items()
            },
            {f"r.{leaf}_l0{way}": shape for way in ("", "_reverse") for leaf, shape in RNN.items()},
        ),
        (
            {f"m/{part}/kernel": ("EinsumDense", (8, 2, 4)) for part in ("query", "key", "value")},
            {"m.in_proj_weight": (24, 8)},
        ),
        (
            {f"m/{part}/kernel": ("EinsumDense", (8, 2, 4)) for part in ("query", "key", "value")},
            {f"m.{part}_proj.weight": (8, 8) for part in "qkv"},
        ),
    ],
)
def test_torch_is_what_the_kind_of_layer_is_there(
    variables: dict[str, tuple[str, Shape]], tensors: dict[str, Shape]
) -> None:
    plan = planned(variables, tensors)
    assert not plan.problems, str(plan.problems[0])
    taken = {name for pieces in origins(plan).values() for piece in pieces for name in [piece]}
    assert {name for piece in taken for name in piece.removeprefix("net: ").split("+")} == {
        *tensors
    }
    assert not plan.warnings


def test_layers_of_recurrent_nets_are_counted() -> None:
    variables = {f"{name}/lstm_cell/kernel": ("LSTMCell", (3, 16)) for name in ("lstm", "lstm_1")}
    tensors: dict[str, Shape] = {f"rnn.weight_ih_l{number}": (16, 3) for number in (0, 1)}
    plan = planned(variables, tensors, rules={"lstm{_n}/": "rnn. | torch_lstm({_n})"})
    assert [*origins(plan).values()] == [[f"net: {name}"] for name in tensors]


GPT2: dict[str, Shape] = {
    "c_attn.weight": (4, 12),
    "c_attn.bias": (12,),
    "c_proj.weight": (4, 4),
    "c_proj.bias": (4,),
}


def test_a_square_kernel_is_not_transposed_silently() -> None:
    square = {"c_proj/kernel": ("Dense", (4, 4))}
    problem = only(planned(square, GPT2))
    assert "may be of PyTorch's Linear or of GPT2's Conv1D" in problem.cause
    for name, steps in (("linear", ("transposed (1, 0)",)), ("conv1d_gpt2", ())):
        plan = planned(square, GPT2, convert={"*": name})
        assert [a.source_tensor.steps for a in plan.assignments if a.source_tensor] == [steps]
    several_heads = {"c_proj/kernel": ("EinsumDense", (2, 2, 4))}
    assert "say einsum_dense or conv1d_gpt2" in only(planned(several_heads, GPT2)).cause
    linear = {name: shape for name, shape in GPT2.items() if name != "c_attn.weight"}
    assert not planned(square, linear).problems


def test_a_depthwise_kernel_of_an_unknown_layer_is_offered_its_conversion() -> None:
    problem = only(planned({"a/kernel": ("", (5, 5, 3, 1))}, {"a.weight": (3, 1, 5, 5)}))
    assert problem.choices[0] == """'++scaffolds.net.rules={a/kernel:"a.weight | depthwise"}'"""


def test_names_that_differ_are_not_said_to_be_of_another_model() -> None:
    variables = {f"x{at}/kernel": ("Dense", (at + 2, 2)) for at in range(4)}
    tensors: dict[str, Shape] = {f"y{at}.weight": (2, at + 2) for at in range(4)}
    problem = only(planned(variables, tensors))
    assert problem.cause.endswith("4 have the sizes of these variables, under other names")
    assert problem.choices == ()


def test_what_fits_and_is_probably_wrong_is_a_warning() -> None:
    dense = replace(variable("fc/kernel", (12, 4)), layer="Dense", flattened=(2, 3, 2))
    source = checkpoint(shapes={"fc.weight": (4, 12), "table": (6, 2)})
    plan = one([dense], scaffold(**TORCH), source)
    (warning,) = plan.warnings
    assert "fc/kernel reads a flattened map of 2x3x2, which PyTorch flattens channels" in warning
    assert f"warning: {warning}" in text(plan)
    rules = {"fc/kernel": "fc.weight | linear | unflatten(2, 2, 3)"}
    assert not one([dense], scaffold(rules=rules), source).warnings
    pad = scaffold(shape=ShapePolicy.pad_or_slice)
    plan = one([variable("table", (4, 2))], pad, source)
    assert "table takes the first [4, 2] of [6, 2] in table and drops the rest" in plan.warnings[0]
    assert not one([variable("table", (8, 2))], pad, source).warnings
    ways = [variable(f"r/{way}_lstm/kernel") for way in ("forward", "backward")]
    plan = one(ways, scaffold(rename={"re:r/.*": "w"}), checkpoint("w"))
    assert "two directions, take the same w" in plan.warnings[0]


# PyTorch's interpolate(mode="bicubic", align_corners=False) of 3 * sin(0 .. 11) as 3x4.
BICUBIC = {
    (5, 3): "0.62292 3.5835 0.67646 -1.08053 0.89922 1.40658 -2.39282 -2.17772 1.60318 0.56831 "
    "-1.36539 -1.0634 3.26491 -0.04517 -3.28129",
    (2, 6): "-0.85955 0.15455 1.44807 1.95314 1.52252 0.86202 1.83916 1.06664 -0.26182 -1.34129 "
    "-1.8571 -1.84032",
}


@pytest.mark.parametrize("size", BICUBIC)
def test_position_embeddings_are_interpolated_as_pytorch_does(size: tuple[int, int]) -> None:
    grid = np.sin(np.arange(12, dtype=np.float32)) * 3
    tokens = np.stack([np.r_[np.float32(7), grid]] * 2, axis=-1)[None]
    step = Interpolate((3, 4), size, others=1)
    result = step.apply(tokens)
    assert result.dtype == np.float32
    assert result.shape == step.shape(tokens.shape)
    assert (result[0, 0] == 7).all()
    expected = np.array(BICUBIC[size].split(), float)
    for column in (0, 1):
        np.testing.assert_allclose(result[0, 1:, column], expected, atol=1e-5)
