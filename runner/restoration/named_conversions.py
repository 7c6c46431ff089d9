"""The named conversions that `scaffolds.NAME.convert` accepts, between layouts people meet.

Conversions from PyTorch make a variable's name PyTorch's if the renamed name still ends as Keras's
does: the parts are joined by dots, and `kernel` is `weight`. Other names are taken as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.restoration.conversions import Combination, Conversion, Reshape, Slice, Transpose

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """The variable that a conversion is built for.

    Attributes:
      name: its name, or its owner's where it is a slot or an average.
      shape: its whole shape.
      linear: whether constants must not be added, as for optimizer slots.
    """

    name: str
    shape: Shape
    linear: bool = False


# Takes the variable and the shapes of its tensors.
Build = Callable[[Target, Sequence[Shape]], tuple[Conversion, ...]]


@dataclass(frozen=True)
class NamedConversion:
    """One entry of the registry.

    Attributes:
      build: returns the steps to the variable's value; a ValueError reports what does not fit.
      names: makes the tensors' names from the variable's name and its renamed name.
      combination: makes one tensor of several, before the steps.
    """

    build: Build
    names: Callable[[str, str], tuple[str, ...]] = lambda variable, name: (name,)
    combination: Combination | None = None


# A layer's gates are blocks of the last axis, one letter each. Of an LSTM i: input, f: forget,
# c: candidate (PyTorch writes g, TensorFlow 1 j), o: output; of a GRU r: reset, z: update, n: new.
KERAS, TF1 = "ifco", "icfo"
KERAS_GRU, TORCH_GRU = "zrn", "rzn"


def _units(shape: Shape, gates: str) -> int:
    if not shape or shape[-1] % len(gates):
        raise ValueError(f"the last axis of {list(shape)} does not hold {len(gates)} gates")
    return shape[-1] // len(gates)


@dataclass(frozen=True)
class GateOrder(Conversion):
    """Reorders the gates along the last axis."""

    old: str
    new: str

    def shape(self, shape: Shape) -> Shape:
        """See `Conversion.shape`."""
        _units(shape, self.old)
        return shape

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        gates = dict(zip(self.old, np.split(value, len(self.old), axis=-1), strict=True))
        return np.concatenate([gates[gate] for gate in self.new], axis=-1)

    def __str__(self) -> str:
        return f"gates {self.old} to {self.new}"


@dataclass(frozen=True)
class AddForgetBias(Conversion):
    """Adds a constant to the forget gate's bias, which a TensorFlow 1 cell adds at every step."""

    amount: float

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        result = value.copy()
        # The split gives views of the copy.
        np.split(result, len(KERAS), axis=-1)[KERAS.index("f")][...] += self.amount
        return result

    def __str__(self) -> str:
        return f"forget bias +{self.amount:g}"


def _transposed(target: Target, shapes: Sequence[Shape]) -> tuple[Conversion, ...]:
    return (Transpose((1, 0)),)


def _last(target: Target, ends: Mapping[str, str], parts: int = 1) -> str:
    """Returns the last parts of the variable's name, which must be one of `ends`."""
    last = "/".join(target.name.split("/")[-parts:])
    if last not in ends:
        raise ValueError(f"{last!r} is not a variable that it converts: {', '.join(ends)}")
    return last


def _tf1_lstm(forget_bias: float) -> Build:
    def build(target: Target, shapes: Sequence[Shape]) -> tuple[Conversion, ...]:
        order = GateOrder(TF1, KERAS)
        leaf = _last(target, _RECURRENT)
        if leaf == "bias":
            plain = target.linear or not forget_bias
            return (order,) if plain else (order, AddForgetBias(forget_bias))
        if len(shapes[0]) != 2 or len(target.shape) != 2 or shapes[0][0] <= shapes[0][1] // 4:
            raise ValueError(f"{list(shapes[0])} is not a kernel (inputs + units, 4 * units)")
        rows, columns = shapes[0]
        inputs = rows - columns // 4
        offset, size = (0, inputs) if leaf == "kernel" else (inputs, rows - inputs)
        return Slice((offset, 0), (size, columns)), order

    return build


GATE = "{gate}"


def _join_names(variable: str, name: str) -> tuple[str, ...]:
    if GATE not in name:
        raise ValueError(f"{name!r} has no {GATE} in the place of the gate's letter")
    return tuple(name.replace(GATE, gate) for gate in KERAS)


def _take_gate(gate: str) -> Build:
    def build(target: Target, shapes: Sequence[Shape]) -> tuple[Conversion, ...]:
        units, others = _units(shapes[0], KERAS), shapes[0][:-1]
        offset = (*(0 for _ in others), units * KERAS.index(gate))
        return (Slice(offset, (*others, units)),)

    return build


def _torch_conv(target: Target, shapes: Sequence[Shape]) -> tuple[Conversion, ...]:
    return (Transpose((*range(2, len(shapes[0])), 1, 0)),)


def _torch_depthwise(target: Target, shapes: Sequence[Shape]) -> tuple[Conversion, ...]:
    # PyTorch counts the outputs channel by channel: index = channel * multiplier + m.
    if len(shapes[0]) != 4 or shapes[0][1] != 1 or len(target.shape) != 4:
        raise ValueError(f"{list(shapes[0])} is not a depthwise kernel (out, 1, height, width)")
    out, _, height, width = shapes[0]
    channels = target.shape[2]
    if not channels or out % channels:
        raise ValueError(f"{out} outputs are not a multiple of the {channels} channels")
    split = Reshape((channels, out // channels, height, width))
    return split, Transpose((2, 3, 0, 1))


def _torch_lstm(target: Target, shapes: Sequence[Shape]) -> tuple[Conversion, ...]:
    # The gates are i, f, g, o, which is Keras' order.
    if _last(target, _RECURRENT) != "bias":
        return _transposed(target, shapes)
    if target.linear:
        raise ValueError("slots and averages of two biases do not add up to the sum's")
    return ()


def _torch_gru(target: Target, shapes: Sequence[Shape]) -> tuple[Conversion, ...]:
    order = GateOrder(TORCH_GRU, KERAS_GRU)
    if _last(target, _RECURRENT) != "bias":
        return Transpose((1, 0)), order
    if len(target.shape) != 2:
        raise ValueError("one bias cannot stand for PyTorch's two: make the GRU with reset_after")
    return (order,)


def _torch(target: Target, shapes: Sequence[Shape]) -> tuple[Conversion, ...]:
    return _torch_conv(target, shapes) if _last(target, _PLAIN) == "kernel" else ()


def _torch_attention(target: Target, shapes: Sequence[Shape]) -> tuple[Conversion, ...]:
    part, leaf = _last(target, _ATTENTION, parts=2).split("/")
    steps: list[Conversion] = []
    rows = math.prod(target.shape[1:] if leaf == "kernel" else target.shape)
    if part in _PROJECTIONS and shapes[0][:1] == (3 * rows,):
        # Query, key and value are in one tensor, one after the other.
        offset, others = rows * _PROJECTIONS.index(part), shapes[0][1:]
        steps.append(Slice((offset, *(0 for _ in others)), (rows, *others)))
    if leaf == "kernel":
        steps.append(Transpose((1, 0)))
    # PyTorch has one axis for all heads.
    return (*steps, Reshape(target.shape))


# The ends of Keras's names -> PyTorch's.
_PLAIN = {
    "kernel": "weight",
    "bias": "bias",
    "embeddings": "weight",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_RECURRENT = {
    "kernel": "weight_ih_l0",
    "recurrent_kernel": "weight_hh_l0",
    "bias": "bias_ih_l0",
}
_PROJECTIONS = ("query", "key", "value")
_ATTENTION = {
    **{f"{part}/kernel": "in_proj_weight" for part in _PROJECTIONS},
    **{f"{part}/bias": "in_proj_bias" for part in _PROJECTIONS},
    "attention_output/kernel": "out_proj.weight",
    "attention_output/bias": "out_proj.bias",
}
# A Keras layer holds its variables in a cell, PyTorch's has none.
_CELL = re.compile(r"(^|.*\.)(lstm|gru)_cell(_\d+)?\.")


def _torch_name(variable: str, name: str, ends: Mapping[str, str], parts: int = 1) -> str:
    """Returns PyTorch's name if the renamed `name` still ends in the last parts of `variable`."""
    last = "/".join(variable.split("/")[-parts:])
    stem = name.removesuffix(last)
    if last not in ends or stem == name or (stem and stem[-1] not in "/."):
        return name
    return stem.replace("/", ".") + ends[last]


def _recurrent_names(variable: str, name: str) -> tuple[str, ...]:
    torch_name = _torch_name(variable, name, _RECURRENT)
    if torch_name != name:
        torch_name = _CELL.sub(r"\1", torch_name)
    if not variable.endswith("bias"):
        return (torch_name,)
    if "bias_ih" not in torch_name:
        raise ValueError(
            f"{name!r} is not the name of a tensor bias_ih..., whose partner is bias_hh..."
        )
    return (torch_name, torch_name.replace("bias_ih", "bias_hh"))


NAMED_CONVERSIONS: dict[str, NamedConversion] = {
    # PyTorch's Linear, Conv, BatchNorm, LayerNorm and Embedding.
    "torch": NamedConversion(_torch, lambda variable, name: (_torch_name(variable, name, _PLAIN),)),
    # (out, in, spatial...) to (spatial..., in, out); also OIHW to HWIO.
    "torch_conv": NamedConversion(_torch_conv),
    # (channels * multiplier, 1, h, w) to (h, w, channels, multiplier).
    "torch_depthwise": NamedConversion(_torch_depthwise),
    # (out, in) to (in, out).
    "torch_dense": NamedConversion(_transposed),
    # weight_ih, weight_hh and bias_ih + bias_hh of layer 0, with gates i, f, g, o.
    "torch_lstm": NamedConversion(_torch_lstm, _recurrent_names, Combination.SUM),
    # Likewise with gates r, z, n, and both biases as in Keras's reset_after=True.
    "torch_gru": NamedConversion(_torch_gru, _recurrent_names, Combination.STACK),
    # in_proj and out_proj to query, key, value and attention_output.
    "torch_attention": NamedConversion(
        _torch_attention,
        lambda variable, name: (_torch_name(variable, name, _ATTENTION, parts=2),),
    ),
    # LSTMCell's kernel (inputs + units, 4 * units) and bias, with gates i, c, f, o.
    "tf1_lstm": NamedConversion(_tf1_lstm(forget_bias=1.0)),
    "tf1_lstm_no_forget_bias": NamedConversion(_tf1_lstm(forget_bias=0.0)),
    # One tensor for each gate: rename to a name with {gate}, which stands for i, f, c, o.
    "lstm_join": NamedConversion(lambda target, shapes: (), _join_names, Combination.JOIN),
    # One gate alone, from a Keras LSTM's tensor of all gates.
    **{f"lstm_gate_{gate}": NamedConversion(_take_gate(gate)) for gate in KERAS},
}
