"""Each named conversion against a computation of its own: real cells, or formulas written out."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from runner.restoration.conversions import Combination, Conversion
from runner.restoration.layouts import Target
from runner.restoration.named_conversions import (
    NAMED_CONVERSIONS,
    AddForgetBias,
    GateOrder,
    JoinGates,
    TakeGate,
)
from runner.restoration.torch_layouts import Sum

Array = NDArray[Any]
GENERATOR = np.random.default_rng(7)
INPUTS, UNITS, BATCH, STEPS = 3, 5, 2, 4


def random(*shape: int) -> Array:
    return GENERATOR.normal(size=shape).astype(np.float32)


def convert(
    name: str, leaf: str, shape: tuple[int, ...], *values: Array, linear: bool = False
) -> Array:
    """Converts as a plan does; the shapes are those foretold, and the tensors stay as they are."""
    before = [each.copy() for each in values]
    layout = NAMED_CONVERSIONS[name].build(
        Target(leaf, shape, linear), [value.shape for value in values]
    )
    value, foretold = values[0], values[0].shape
    if layout.combination is not None:
        value = layout.combination.apply(values)
        foretold = layout.combination.shape([each.shape for each in values])
    for step in layout.conversions:
        value, foretold = step.apply(value), step.shape(foretold)
    assert value.shape == foretold == shape
    for each, unchanged in zip(values, before, strict=True):
        np.testing.assert_array_equal(each, unchanged)
    return value


def sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def keras_lstm(weights: list[Array], inputs: Array) -> Array:
    layer = keras.layers.LSTM(UNITS, return_sequences=True)
    layer.build(inputs.shape)
    layer.set_weights(weights)
    return np.asarray(layer(inputs))


def assert_close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


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
    weights = [
        convert(name, leaf, shape, bias if leaf == "bias" else kernel)
        for leaf, shape in SHAPES.items()
    ]
    expected = tf1_cell(kernel, bias, inputs, forget_bias)
    assert_close(keras_lstm(weights, inputs), expected)


def textbook_lstm(parts: dict[str, dict[str, Array]], inputs: Array) -> Array:
    """The textbook's LSTM with matrices of its own for each gate."""
    hidden = cell = np.zeros((BATCH, UNITS))
    outputs = []
    for step in range(STEPS):
        x = inputs[:, step]
        i, f, c, o = (
            x @ parts["kernel"][gate]
            + hidden @ parts["recurrent_kernel"][gate]
            + parts["bias"][gate]
            for gate in "ifco"
        )
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(c)
        hidden = sigmoid(o) * np.tanh(cell)
        outputs.append(hidden)
    return np.stack(outputs, axis=1)


def test_a_pytorch_lstm_continues_as_a_keras_lstm() -> None:
    weight_ih, weight_hh = random(4 * UNITS, INPUTS), random(4 * UNITS, UNITS)
    bias_ih, bias_hh = random(4 * UNITS), random(4 * UNITS)
    inputs = random(BATCH, STEPS, INPUTS)
    weights = [
        convert("torch_lstm", "kernel", SHAPES["kernel"], weight_ih),
        convert("torch_lstm", "recurrent_kernel", SHAPES["recurrent_kernel"], weight_hh),
        convert("torch_lstm", "bias", SHAPES["bias"], bias_ih, bias_hh),
    ]
    by_leaf = {"kernel": weight_ih.T, "recurrent_kernel": weight_hh.T, "bias": bias_ih + bias_hh}
    # PyTorch documents its gates as i, f, g, o, in rows.
    parts = {
        leaf: dict(zip("ifco", np.split(value, 4, axis=-1), strict=True))
        for leaf, value in by_leaf.items()
    }
    assert_close(keras_lstm(weights, inputs), textbook_lstm(parts, inputs))


def test_unfused_gates_join_into_a_keras_lstm_that_divides_into_them() -> None:
    parts = {
        leaf: {gate: random(*shape[:-1], UNITS) for gate in "ifco"}
        for leaf, shape in SHAPES.items()
    }
    inputs = random(BATCH, STEPS, INPUTS)
    weights = [
        convert("lstm_join", leaf, shape, *(parts[leaf][gate] for gate in "ifco"))
        for leaf, shape in SHAPES.items()
    ]
    assert_close(keras_lstm(weights, inputs), textbook_lstm(parts, inputs))
    for (leaf, gates), whole in zip(parts.items(), weights, strict=True):
        for gate, value in gates.items():
            found = convert(f"lstm_gate_{gate}", leaf, value.shape, whole)
            np.testing.assert_array_equal(found, value)


def test_a_pytorch_convolution() -> None:
    weight, image = random(4, 3, 2, 2), random(1, 5, 6, 3)
    kernel = convert("torch_conv", "kernel", (2, 2, 3, 4), weight)
    expected = np.zeros((1, 4, 5, 4))
    for row, column, out in np.ndindex(4, 5, 4):
        window = image[0, row : row + 2, column : column + 2]  # Height, width, channels.
        expected[0, row, column, out] = sum(
            weight[out, channel, y, x] * window[y, x, channel]
            for channel, y, x in np.ndindex(3, 2, 2)
        )
    assert_close(tf.nn.conv2d(image, kernel, 1, "VALID"), expected)
    of_signals = random(4, 3, 2)
    kernel = convert("torch_conv", "kernel", (2, 3, 4), of_signals)
    np.testing.assert_array_equal(kernel, of_signals.transpose(2, 1, 0))


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
    assert_close(result, expected)


def test_a_pytorch_linear_layer() -> None:
    weight, features = random(4, 3), random(2, 3)
    layer = keras.layers.Dense(4, use_bias=False)
    layer.build((None, 3))
    layer.set_weights([convert("torch_dense", "kernel", (3, 4), weight)])
    expected = [[np.dot(weight[out], row) for out in range(4)] for row in features]
    assert_close(layer(features), expected)


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
        ("torch_conv", Target("kernel", (3, 4)), (4, 3), "is not a convolution kernel"),
        (
            "torch_depthwise",
            Target("kernel", (2, 2, 3, 2)),
            (6, 2, 2, 2),
            "is not a depthwise kernel",
        ),
        ("torch_depthwise", Target("kernel", (2, 2, 4, 2)), (6, 1, 2, 2), "6 outputs are not"),
        ("torch_lstm", Target("gamma", (3,)), (3,), "'gamma' is not a Keras LSTM's"),
        ("torch_lstm", Target("bias", (4,), linear=True), (4,), "two biases do not add up to"),
        ("tf1_lstm", Target("kernel", (3, 8)), (2, 8), r"is not a kernel \(inputs \+ units"),
        ("tf1_lstm", Target("kernel", (3, 8)), (8,), "is not a kernel"),
        ("tf1_lstm", Target("w_f_diag", (3,)), (3,), "'w_f_diag' is not"),
    ],
)
def test_what_a_conversion_refuses(
    name: str, target: Target, tensor: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        NAMED_CONVERSIONS[name].build(target, [tensor])


STEPS_IN_WORDS = {
    GateOrder(): "gates icfo to ifco",
    TakeGate("c"): "gate c of ifco",
    AddForgetBias(1.0): "forget bias +1",
    JoinGates(): "gates joined",
    Sum(): "summed",
}


def test_steps_in_words() -> None:
    assert [str(each) for each in STEPS_IN_WORDS] == list(STEPS_IN_WORDS.values())


@pytest.mark.parametrize("shape", [(), (3, 6)])
@pytest.mark.parametrize(
    "step", [each for each in STEPS_IN_WORDS if isinstance(each, Conversion)], ids=str
)
def test_the_last_axis_holds_four_gates(step: Conversion, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="does not hold four gates"):
        step.shape(shape)


@pytest.mark.parametrize(
    ("step", "shapes"),
    [(JoinGates(), [(2,), (3,)]), (JoinGates(), [(), ()]), (Sum(), [(2,), (3,)])],
)
def test_tensors_of_different_shapes_do_not_combine(
    step: Combination, shapes: list[tuple[int, ...]]
) -> None:
    with pytest.raises(ValueError, match="have the shapes"):
        step.shape(shapes)
