"""The named conversions that `scaffolds.NAME.convert` accepts, between layouts people meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.restoration.conversions import Combination, Conversion, Reshape, Slice, Transpose

# i: input gate, f: forget gate, c: candidate (PyTorch writes g, TensorFlow 1 j), o: output gate.
KERAS = "ifco"
TF1 = "icfo"


class _OfGates(Conversion):
    """A step on a tensor that holds the four gates along its last axis, each a block of units."""

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        if not shape or shape[-1] % 4:
            raise ValueError(f"the last axis of {list(shape)} does not hold four gates")
        return shape


@dataclass(frozen=True)
class GateOrder(_OfGates):
    """Reorders the gates of a TensorFlow 1 cell for Keras."""

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        gates = np.split(value, 4, axis=-1)
        return np.concatenate([gates[TF1.index(gate)] for gate in KERAS], axis=-1)

    def __str__(self) -> str:
        return f"gates {TF1} to {KERAS}"


@dataclass(frozen=True)
class AddForgetBias(_OfGates):
    """Adds a constant to the forget gate's bias, which a TensorFlow 1 cell adds at every step."""

    amount: float

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        result = value.copy()
        # The split gives views of the copy.
        np.split(result, 4, axis=-1)[KERAS.index("f")][...] += self.amount
        return result

    def __str__(self) -> str:
        return f"forget bias +{self.amount:g}"


@dataclass(frozen=True)
class TakeGate(_OfGates):
    """Takes one gate, named by its letter, out of the four."""

    gate: str

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        return (*super().shape(shape)[:-1], shape[-1] // 4)

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        gate: NDArray[Any] = np.split(value, 4, axis=-1)[KERAS.index(self.gate)]
        return gate

    def __str__(self) -> str:
        return f"gate {self.gate} of {KERAS}"


@dataclass(frozen=True)
class JoinGates(Combination):
    """Joins the gates, one tensor each, along the last axis in the order given."""

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """See `Combination.shape`."""
        if len(set(shapes)) != 1 or not shapes[0]:
            raise ValueError(f"the gates have the shapes {[list(shape) for shape in shapes]}")
        return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))

    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `Combination.apply`."""
        return np.concatenate(values, axis=-1)

    def __str__(self) -> str:
        return "gates joined"


@dataclass(frozen=True)
class Sum(Combination):
    """Adds the tensors, e.g. PyTorch's two biases, of which Keras keeps one."""

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """See `Combination.shape`."""
        if len(set(shapes)) != 1:
            raise ValueError(f"the summands have the shapes {[list(shape) for shape in shapes]}")
        return shapes[0]

    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `Combination.apply`."""
        total = values[0].copy()
        for value in values[1:]:
            total += value
        return total

    def __str__(self) -> str:
        return "summed"


GATE = "{gate}"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Target:
    """The variable that a conversion is built for.

    Attributes:
      leaf: the last part of its name, or of its owner's where it is a slot or an average.
      shape: its whole shape.
      linear: whether constants must not be added, as for optimizer slots.
    """

    leaf: str
    shape: Shape
    linear: bool = False


@dataclass(frozen=True)
class Layout:
    """How tensors become one variable's value: a combination if there are several, then steps."""

    conversions: tuple[Conversion, ...]
    combination: Combination | None = None


@dataclass(frozen=True)
class NamedConversion:
    """One entry of the registry.

    Attributes:
      description: from which layout to which.
      build: makes the steps for a variable and the shapes of its tensors; a ValueError reports
        what does not fit.
      names: makes the tensors' names from the variable's leaf and the renamed name.
    """

    description: str
    build: Callable[[Target, Sequence[Shape]], Layout]
    names: Callable[[str, str], tuple[str, ...]] = lambda leaf, name: (name,)


def _torch_conv(target: Target, shapes: Sequence[Shape]) -> Layout:
    rank = len(shapes[0])
    if rank < 3:
        raise ValueError(f"{list(shapes[0])} is not a convolution kernel (out, in, spatial...)")
    return Layout((Transpose((*range(2, rank), 1, 0)),))


def _torch_depthwise(target: Target, shapes: Sequence[Shape]) -> Layout:
    # PyTorch counts the outputs channel by channel: index = channel * multiplier + m.
    if len(shapes[0]) != 4 or shapes[0][1] != 1 or len(target.shape) != 4:
        raise ValueError(f"{list(shapes[0])} is not a depthwise kernel (out, 1, height, width)")
    out, _, height, width = shapes[0]
    channels = target.shape[2]
    if not channels or out % channels:
        raise ValueError(f"{out} outputs are not a multiple of the {channels} channels")
    split = Reshape((channels, out // channels, height, width))
    return Layout((split, Transpose((2, 3, 0, 1))))


def _torch_lstm(target: Target, shapes: Sequence[Shape]) -> Layout:
    # The gates are i, f, g, o, which is Keras' order.
    if _lstm_leaf(target.leaf) != "bias":
        return Layout((Transpose((1, 0)),))
    if target.linear:
        raise ValueError("slots and averages of two biases do not add up to those of their sum")
    return Layout((), Sum())


def _torch_lstm_names(leaf: str, name: str) -> tuple[str, ...]:
    if leaf != "bias":
        return (name,)
    if "bias_ih" not in name:
        raise ValueError(
            f"{name!r} is not the name of a tensor bias_ih..., whose partner is bias_hh..."
        )
    return (name, name.replace("bias_ih", "bias_hh"))


def _tf1_lstm(forget_bias: float) -> Callable[[Target, Sequence[Shape]], Layout]:
    def build(target: Target, shapes: Sequence[Shape]) -> Layout:
        order = GateOrder()
        leaf = _lstm_leaf(target.leaf)
        if leaf == "bias":
            plain = target.linear or not forget_bias
            return Layout((order,) if plain else (order, AddForgetBias(forget_bias)))
        if len(shapes[0]) != 2 or len(target.shape) != 2 or shapes[0][0] <= shapes[0][1] // 4:
            raise ValueError(f"{list(shapes[0])} is not a kernel (inputs + units, 4 * units)")
        rows, columns = shapes[0]
        inputs = rows - columns // 4
        offset, size = (0, inputs) if leaf == "kernel" else (inputs, rows - inputs)
        return Layout((Slice((offset, 0), (size, columns)), order))

    return build


def _lstm_leaf(leaf: str) -> str:
    if leaf not in ("kernel", "recurrent_kernel", "bias"):
        raise ValueError(f"{leaf!r} is not a Keras LSTM's kernel, recurrent_kernel or bias")
    return leaf


def _join_names(leaf: str, name: str) -> tuple[str, ...]:
    if GATE not in name:
        raise ValueError(f"{name!r} has no {GATE} in the place of the gate's letter")
    return tuple(name.replace(GATE, gate) for gate in KERAS)


def _take_gate(gate: str) -> NamedConversion:
    return NamedConversion(
        f"gate {gate} alone, from a Keras LSTM's tensor of all gates ({', '.join(KERAS)})",
        lambda target, shapes: Layout((TakeGate(gate),)),
    )


NAMED_CONVERSIONS: dict[str, NamedConversion] = {
    "torch_conv": NamedConversion(
        "convolution kernel (out, in, spatial...) to (spatial..., in, out); also OIHW to HWIO",
        _torch_conv,
    ),
    "torch_depthwise": NamedConversion(
        "depthwise kernel (channels * multiplier, 1, h, w) to (h, w, channels, multiplier)",
        _torch_depthwise,
    ),
    "torch_dense": NamedConversion(
        "dense kernel (out, in) to (in, out)", lambda target, shapes: Layout((Transpose((1, 0)),))
    ),
    "torch_lstm": NamedConversion(
        "PyTorch LSTM weight_ih, weight_hh and bias_ih + bias_hh (gates i, f, g, o) to a Keras "
        "LSTM's kernel, recurrent_kernel and bias; rename the bias to bias_ih...",
        _torch_lstm,
        _torch_lstm_names,
    ),
    "tf1_lstm": NamedConversion(
        "TensorFlow 1 LSTMCell kernel (inputs + units, 4 * units) and bias (gates i, c, f, o) to a "
        "Keras LSTM's kernel, recurrent_kernel and bias, forget_bias=1.0 folded in",
        _tf1_lstm(1.0),
    ),
    "tf1_lstm_no_forget_bias": NamedConversion(
        "as tf1_lstm, from a cell made with forget_bias=0.0", _tf1_lstm(0.0)
    ),
    "lstm_join": NamedConversion(
        f"one tensor for each gate to a Keras LSTM's; rename to a name with {GATE} for i, f, c, o",
        lambda target, shapes: Layout((), JoinGates()),
        _join_names,
    ),
    **{f"lstm_gate_{gate}": _take_gate(gate) for gate in KERAS},
}
