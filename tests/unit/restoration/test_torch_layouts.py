"""PyTorch's layers by their own formulas in NumPy, and Keras's layers warm-started from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from numpy.typing import NDArray

import runner
from runner.errors import PlanError

Array = NDArray[Any]
layers = keras.layers
RANDOM = np.random.default_rng(0)


def random(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


# What `torch.nn` computes from `state_dict()`, with channels after the batch.


def linear(state: dict[str, Array], x: Array) -> Array:
    return x @ state["weight"].T + state["bias"]


def conv1d(state: dict[str, Array], x: Array) -> Array:
    weight = state["weight"]
    steps = range(x.shape[2] - weight.shape[2] + 1)
    windows = [np.einsum("bck,ock->bo", x[:, :, at : at + weight.shape[2]], weight) for at in steps]
    return np.asarray(np.stack(windows, axis=2) + state["bias"][:, None])


def conv2d(state: dict[str, Array], x: Array) -> Array:
    weight = state["weight"]
    high, wide = weight.shape[2:]
    rows = [
        [
            np.einsum("bchw,ochw->bo", x[:, :, at : at + high, left : left + wide], weight)
            for left in range(x.shape[3] - wide + 1)
        ]
        for at in range(x.shape[2] - high + 1)
    ]
    moved: Array = np.moveaxis(np.array(rows), (0, 1), (2, 3))
    return np.asarray(moved + state["bias"][:, None, None])


def batch_norm(state: dict[str, Array], x: Array) -> Array:
    scaled = (x - state["running_mean"]) / np.sqrt(state["running_var"] + 1e-5)
    return scaled * state["weight"] + state["bias"]


def layer_norm(state: dict[str, Array], x: Array) -> Array:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + 1e-5) * state["weight"] + state["bias"])


def embedding(state: dict[str, Array], x: Array) -> Array:
    return np.asarray(state["weight"][x.astype(int)])


def gru(state: dict[str, Array], x: Array) -> Array:
    hidden = np.zeros((len(x), state["weight_hh_l0"].shape[1]), np.float32)
    for at in range(x.shape[1]):
        given = np.split(x[:, at] @ state["weight_ih_l0"].T + state["bias_ih_l0"], 3, axis=1)
        kept = np.split(hidden @ state["weight_hh_l0"].T + state["bias_hh_l0"], 3, axis=1)
        reset, update = (sigmoid(given[n] + kept[n]) for n in (0, 1))
        new = np.tanh(given[2] + reset * kept[2])
        hidden = (1 - update) * new + update * hidden
    return hidden


def lstm(state: dict[str, Array], x: Array) -> Array:
    hidden = cell = np.zeros((len(x), state["weight_hh_l0"].shape[1]), np.float32)
    for at in range(x.shape[1]):
        gates = x[:, at] @ state["weight_ih_l0"].T + state["bias_ih_l0"]
        gates = gates + hidden @ state["weight_hh_l0"].T + state["bias_hh_l0"]
        into, forget, new, out = np.split(gates, 4, axis=1)
        cell = sigmoid(forget) * cell + sigmoid(into) * np.tanh(new)
        hidden = sigmoid(out) * np.tanh(cell)
    return hidden


def attention(state: dict[str, Array], x: Array) -> Array:
    heads, width = 2, x.shape[-1]
    parts = np.split(x @ state["in_proj_weight"].T + state["in_proj_bias"], 3, axis=-1)
    query, key, value = (
        np.moveaxis(part.reshape(*x.shape[:2], heads, width // heads), 2, 1) for part in parts
    )
    scores = query @ np.moveaxis(key, 2, 3) / np.sqrt(width / heads)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    joined = np.moveaxis(weights @ value, 1, 2).reshape(x.shape)
    return np.asarray(joined @ state["out_proj.weight"].T + state["out_proj.bias"])


def recurrent(gates: int) -> dict[str, Array]:
    units, inputs = 4, 3
    return {
        "weight_ih_l0": random(gates * units, inputs),
        "weight_hh_l0": random(gates * units, units),
        "bias_ih_l0": random(gates * units),
        "bias_hh_l0": random(gates * units),
    }


NORM = {"weight": random(3), "bias": random(3)}
MOVING = {"running_mean": random(3), "running_var": np.exp(random(3))}
ATTENTION = {
    "in_proj_weight": random(18, 6),
    "in_proj_bias": random(18),
    "out_proj.weight": random(6, 6),
    "out_proj.bias": random(6),
}
Formula = Callable[[dict[str, Array], Array], Array]
CASES: dict[str, tuple[str, keras.Layer, dict[str, Array], Formula, Array]] = {
    "dense": (
        *("torch", layers.Dense(2), {"weight": random(2, 3), "bias": random(2)}, linear),
        random(5, 3),
    ),
    "conv1d": (
        *("torch", layers.Conv1D(2, 3), {"weight": random(2, 3, 3), "bias": random(2)}, conv1d),
        random(2, 5, 3),
    ),
    "conv2d": (
        *("torch", layers.Conv2D(2, (2, 3)), {"weight": random(2, 3, 2, 3), "bias": random(2)}),
        *(conv2d, random(2, 4, 5, 3)),
    ),
    "batch_norm": (
        *("torch", layers.BatchNormalization(epsilon=1e-5), {**NORM, **MOVING}, batch_norm),
        random(4, 3),
    ),
    "layer_norm": (
        *("torch", layers.LayerNormalization(epsilon=1e-5), NORM, layer_norm, random(4, 3)),
    ),
    "embedding": (
        *("torch", layers.Embedding(7, 3), {"weight": random(7, 3)}, embedding),
        np.array([[0, 6], [3, 1]]),
    ),
    "gru": ("torch_gru", layers.GRU(4), recurrent(3), gru, random(2, 5, 3)),
    "lstm": ("torch_lstm", layers.LSTM(4), recurrent(4), lstm, random(2, 5, 3)),
    "attention": (
        *("torch_attention", layers.MultiHeadAttention(2, 3), ATTENTION, attention),
        random(2, 5, 6),
    ),
}


def save(folder: Path, state: Mapping[str, Array]) -> None:
    np.savez(folder / "torch.npz", **dict[str, Any](state))


def started(path: Path, layer: keras.Layer, convert: str, **keys: Any) -> runner.WarmStartPlan:
    found = runner.warm_start(
        layer,
        {
            "all": {
                "variables": {"include": ["*"]},
                "checkpoint": path,
                "convert": {"*": convert},
                **keys,
            }
        },
    )
    assert isinstance(found, runner.WarmStartPlan)
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_keras_layer_computes_what_pytorchs_does(case: str, tmp_path: Path) -> None:
    convert, layer, state, formula, x = CASES[case]
    arguments = [x, x] if case == "attention" else [x]
    layer(*arguments)
    save(tmp_path, {f"enc.net.{name}": each for name, each in state.items()})
    rename = {"re:(.*)": r"enc/net/\1"}
    plan = started(tmp_path / "torch.npz", layer, convert, rename=rename)
    assert plan.unused["all"] == ()
    ours = np.asarray(layer(*arguments))
    if "conv" in case:
        theirs = np.moveaxis(formula(state, np.moveaxis(x, -1, 1)), 1, -1)
    else:
        theirs = formula(state, x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_names_that_are_given_whole_and_projections_one_by_one(tmp_path: Path) -> None:
    layer = layers.MultiHeadAttention(2, 3, use_bias=False)
    x = random(2, 5, 6)
    layer(x, x)
    parts = dict(zip("qkv", np.split(ATTENTION["in_proj_weight"], 3), strict=True))
    state = {f"{part}_proj.weight": each for part, each in parts.items()}
    save(tmp_path, {**state, "o": ATTENTION["out_proj.weight"]})
    rename = {f"{name}/kernel": f"{name[0]}_proj.weight" for name in ("query", "key", "value")}
    rename["attention_output/kernel"] = "o"
    started(tmp_path / "torch.npz", layer, "torch_attention", rename=rename)
    biases = {"in_proj_bias": np.zeros(18), "out_proj.bias": np.zeros(6)}
    theirs = attention({**ATTENTION, **biases}, x)
    np.testing.assert_allclose(np.asarray(layer(x, x)), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "convert", "message"),
    [
        (layers.GRU(4, reset_after=False), "torch_gru", "make the GRU with reset_after"),
        (layers.LSTM(4), "torch", "'recurrent_kernel' is none of a plain layer's variables"),
        (layers.LSTM(4), "torch_attention", "is none of a MultiHeadAttention's"),
    ],
)
def test_other_layers_are_refused(
    layer: keras.Layer, convert: str, message: str, tmp_path: Path
) -> None:
    layer.build((None, 5, 3))
    names = ("kernel", "recurrent_kernel", "bias")
    state = {f"w.{name}": np.zeros((12, 3), np.float32) for name in names}
    state |= {"w.weight": state["w.bias"], **{f"w.{n}": e for n, e in recurrent(3).items()}}
    save(tmp_path, state)
    with pytest.raises(PlanError, match=message):
        started(tmp_path / "torch.npz", layer, convert, rename={"re:.*/(.*)": r"w.\1"})
