"""Each named conversion against a computation of its own: real cells, or formulas in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

import runner
from runner.errors import PlanError
from runner.rules.combinations import Combination, Concat, Stack, Sum, WeightNorm
from runner.rules.conversions import AddForgetBias, Conversion, GateOrder
from runner.rules.named_conversions import NAMED_CONVERSIONS
from runner.rules.steps import FUNCTIONS
from runner.rules.target import ConvertedVariable

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


@dataclass(frozen=True)
class Case:
    """A Keras layer, PyTorch's state of the same layer, and what PyTorch computes for an input."""

    convert: str
    layer: keras.Layer
    state: dict[str, Array]
    formula: Formula
    x: Array


@keras.saving.register_keras_serializable()
class Odd(keras.Layer):
    """A cell that is none of PyTorch's."""

    state_size = output_size = 4

    def build(self, shape: Any) -> None:
        """Builds a kernel that `torch` does not know."""
        self.recurrent_kernel = self.add_weight(shape=(12, 3), name="recurrent_kernel")

    def call(self, x: Any, states: Any) -> Any:
        """Passes the state on."""
        return states[0], states


CASES = {
    "dense": Case(
        "torch",
        layers.Dense(2),
        {"weight": random(2, 3), "bias": random(2)},
        linear,
        random(5, 3),
    ),
    "conv2d": Case(
        "torch",
        layers.Conv2D(2, (2, 3)),
        {"weight": random(2, 3, 2, 3), "bias": random(2)},
        conv2d,
        random(2, 4, 5, 3),
    ),
    "batch_norm": Case(
        "torch",
        layers.BatchNormalization(epsilon=1e-5),
        {**NORM, **MOVING},
        batch_norm,
        random(4, 3),
    ),
    "embedding": Case(
        "torch",
        layers.Embedding(7, 3),
        {"weight": random(7, 3)},
        embedding,
        np.array([[0, 6], [3, 1]]),
    ),
    "gru": Case("torch_gru", layers.GRU(4), recurrent(3), gru, random(2, 5, 3)),
    "lstm": Case("torch_lstm", layers.LSTM(4), recurrent(4), lstm, random(2, 5, 3)),
    "lstm by its layer": Case("torch", layers.LSTM(4), recurrent(4), lstm, random(2, 5, 3)),
    "gru by its layer": Case("torch", layers.GRU(4), recurrent(3), gru, random(2, 5, 3)),
    "attention": Case(
        "torch_attention",
        layers.MultiHeadAttention(2, 3),
        ATTENTION,
        attention,
        random(2, 5, 6),
    ),
    "attention by its layers": Case(
        "torch",
        layers.MultiHeadAttention(2, 3),
        ATTENTION,
        attention,
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


@pytest.mark.parametrize("name", CASES)
def test_a_keras_layer_computes_what_pytorchs_does(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    arguments = [case.x, case.x] if name.startswith("attention") else [case.x]
    case.layer(*arguments)
    save(tmp_path, {f"enc.net.{key}": value for key, value in case.state.items()})
    rename = {"re:(.*)": r"enc/net/\1"}
    plan = started(tmp_path / "torch.npz", case.layer, case.convert, rename=rename)
    assert plan.unused["all"] == ()
    ours = np.asarray(case.layer(*arguments))
    if name == "conv2d":
        theirs = np.moveaxis(case.formula(case.state, np.moveaxis(case.x, -1, 1)), 1, -1)
    else:
        theirs = case.formula(case.state, case.x)
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
        (
            layers.RNN(layers.StackedRNNCells([Odd()])),
            "torch",
            "'recurrent_kernel' is not a variable that it converts",
        ),
        (layers.LSTM(4), "torch_attention", "is not a variable that it converts: query/kernel"),
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


def convert(
    name: str, leaf: str, shape: tuple[int, ...], *values: Array, linear: bool = False
) -> Array:
    """Converts as a plan does; the shapes are those foretold, and the tensors stay as they are."""
    before = [each.copy() for each in values]
    shapes = [each.shape for each in values]
    conversion = NAMED_CONVERSIONS[name]
    value, foretold = values[0], shapes[0]
    if len(values) > 1:
        assert conversion.combination is not None
        function, axis = conversion.combination
        combination = FUNCTIONS[function](None, **({} if function == "sum" else {"axis": axis}))
        value, foretold = combination.apply(values), combination.shape(shapes)
    for step in conversion.build(ConvertedVariable(leaf, shape, linear), foretold):
        value, foretold = step.apply(value), step.shape(foretold)
    assert value.shape == foretold == shape
    for each, unchanged in zip(values, before, strict=True):
        np.testing.assert_array_equal(each, unchanged)
    return value


INPUTS, UNITS, BATCH, STEPS = 3, 5, 2, 4
SHAPES = {
    "kernel": (INPUTS, 4 * UNITS),
    "recurrent_kernel": (UNITS, 4 * UNITS),
    "bias": (4 * UNITS,),
}


def tf1_cell(kernel: Array, bias: Array, inputs: Array, forget_bias: float) -> Array:
    """TensorFlow's own LSTM cell, the op below `LSTMBlockCell`."""
    state = output = tf.zeros((BATCH, UNITS))
    none = tf.zeros(UNITS)
    outputs = []
    for step in range(STEPS):
        cell = tf.raw_ops.LSTMBlockCell(
            x=inputs[:, step],
            cs_prev=state,
            h_prev=output,
            w=kernel,
            wci=none,
            wcf=none,
            wco=none,
            b=bias,
            forget_bias=forget_bias,
            cell_clip=-1.0,
        )
        state, output = cell.cs, cell.h
        outputs.append(output)
    return np.stack(outputs, axis=1)


@pytest.mark.parametrize(
    ("name", "forget_bias"), [("tf1_lstm", 1.0), ("tf1_lstm_no_forget_bias", 0.0)]
)
def test_a_tf1_cell_continues_as_a_keras_lstm(name: str, forget_bias: float) -> None:
    kernel, bias = random(INPUTS + UNITS, 4 * UNITS), random(4 * UNITS)
    inputs = random(BATCH, STEPS, INPUTS)
    layer = layers.LSTM(UNITS, return_sequences=True)
    layer.build(inputs.shape)
    layer.set_weights(
        [
            convert(name, leaf, shape, bias if leaf == "bias" else kernel)
            for leaf, shape in SHAPES.items()
        ]
    )
    expected = tf1_cell(kernel, bias, inputs, forget_bias)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(INPUTS, UNITS), (UNITS,)])
def test_unfused_gates_join_into_a_tensor_that_divides_into_them(shape: tuple[int, ...]) -> None:
    parts = [random(*shape) for _ in "ifco"]
    whole = np.concatenate(parts, axis=-1)
    np.testing.assert_array_equal(convert("lstm_join", "kernel", whole.shape, *parts), whole)
    for gate, part in zip("ifco", parts, strict=True):
        found = convert(f"lstm_gate_{gate}", "kernel", shape, whole)
        np.testing.assert_array_equal(found, part)


def test_a_pytorch_depthwise_convolution() -> None:
    channels, multiplier = 3, 2
    weight, image = random(channels * multiplier, 1, 2, 2), random(1, 4, 4, channels)
    kernel = convert("torch_depthwise", "kernel", (2, 2, channels, multiplier), weight)
    expected = np.zeros((1, 3, 3, channels * multiplier))
    for row, column, out in np.ndindex(3, 3, channels * multiplier):
        # Groups = channels: output `out` sees the channel out // multiplier.
        window = image[0, row : row + 2, column : column + 2, out // multiplier]
        expected[0, row, column, out] = np.sum(weight[out, 0] * window)
    result = tf.nn.depthwise_conv2d(image, kernel, [1, 1, 1, 1], "VALID")
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_slots_take_the_layout_but_no_constant() -> None:
    bias = random(4 * UNITS)
    slot = convert("tf1_lstm", "bias", SHAPES["bias"], bias, linear=True)
    i, c, f, o = np.split(bias, 4)
    np.testing.assert_array_equal(slot, np.concatenate([i, f, c, o]))


def test_names_of_the_tensors() -> None:
    def names(conversion: str, leaf: str, name: str) -> tuple[str, ...]:
        return NAMED_CONVERSIONS[conversion].names(leaf, name)

    assert names("torch_dense", "kernel", "fc.weight") == ("fc.weight",)
    assert names("torch_lstm", "kernel", "rnn.weight_ih_l0") == ("rnn.weight_ih_l0",)
    assert names("torch_lstm", "bias", "rnn.bias_ih_l0") == ("rnn.bias_ih_l0", "rnn.bias_hh_l0")
    assert names("lstm_join", "kernel", "W_{gate}/x") == ("W_i/x", "W_f/x", "W_c/x", "W_o/x")
    with pytest.raises(ValueError, match=r"'rnn\.offset' is not the name of a tensor bias_ih"):
        names("torch_lstm", "bias", "rnn.offset")
    with pytest.raises(ValueError, match=r"'W' has no \{gate\}"):
        names("lstm_join", "kernel", "W")


@pytest.mark.parametrize(
    ("name", "target", "tensor", "message"),
    [
        (
            "torch_depthwise",
            ConvertedVariable("kernel", (2, 2, 3, 2)),
            (6, 2, 2, 2),
            "is not a depthwise kernel",
        ),
        (
            "torch_depthwise",
            ConvertedVariable("kernel", (2, 2, 4, 2)),
            (6, 1, 2, 2),
            "6 outputs are not",
        ),
        (
            "torch_lstm",
            ConvertedVariable("gamma", (3,)),
            (3,),
            "'gamma' is not a variable that it converts",
        ),
        (
            "torch_lstm",
            ConvertedVariable("bias", (4,), linear=True),
            (4,),
            "two biases do not add up to",
        ),
        (
            "tf1_lstm",
            ConvertedVariable("kernel", (3, 8)),
            (2, 8),
            r"is not a kernel \(inputs \+ units",
        ),
        ("tf1_lstm", ConvertedVariable("kernel", (3, 8)), (8,), "is not a kernel"),
        ("tf1_lstm", ConvertedVariable("w_f_diag", (3,)), (3,), "'w_f_diag' is not"),
        (
            "lstm_gate_c",
            ConvertedVariable("bias", (3,)),
            (6,),
            r"axis of \[6\] does not hold 4 gates",
        ),
        ("lstm_gate_c", ConvertedVariable("bias", (3,)), (), r"axis of \[\] does not hold 4 gates"),
    ],
)
def test_what_a_conversion_refuses(
    name: str, target: ConvertedVariable, tensor: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        NAMED_CONVERSIONS[name].build(target, tensor)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (GateOrder("icfo", "ifco"), "gates icfo to ifco"),
        (AddForgetBias(1.0), "forget bias +1"),
        (Concat(-1), "joined along axis -1"),
        (Sum(), "summed"),
        (Stack(), "stacked"),
        (Stack(1), "stacked along axis 1"),
        (WeightNorm(), "weight norm merged"),
    ],
)
def test_steps_in_words(step: Conversion | Combination, words: str) -> None:
    assert str(step) == words


def test_gates_that_are_not_there_and_tensors_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="does not hold 3 gates"):
        GateOrder("rzn", "zrn").shape((3, 8))
    for combination in (Sum(), Stack()):
        with pytest.raises(ValueError, match=r"the tensors have the shapes \[\[2\], \[3\]\]"):
            combination.shape([(2,), (3,)])
    with pytest.raises(ValueError, match="have the shapes"):
        Concat(-1).shape([(), ()])
