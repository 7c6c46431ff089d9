"""PyTorch's layouts of the layers that Keras has too, and its names of their tensors.

A variable's name becomes PyTorch's where the renamed name still ends as Keras's does: the parts are
joined by dots, and `kernel` is `weight`. A name that `rename` gives whole is taken as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.restoration.conversions import Combination, Conversion, Reshape, Slice, Transpose
from runner.restoration.layouts import Layout, NamedConversion, Shape, Target


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


@dataclass(frozen=True)
class Stack(Combination):
    """Stacks the tensors along a new first axis, e.g. a GRU's two biases, which Keras keeps."""

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """See `Combination.shape`."""
        if len(set(shapes)) != 1:
            raise ValueError(f"what is stacked has the shapes {[list(shape) for shape in shapes]}")
        return (len(shapes), *shapes[0])

    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `Combination.apply`."""
        return np.stack(values)

    def __str__(self) -> str:
        return "stacked"


@dataclass(frozen=True)
class SwapGates(Conversion):
    """Reorders a GRU's gates along the last axis: PyTorch's reset, update, new to Keras's."""

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        if not shape or shape[-1] % 3:
            raise ValueError(f"the last axis of {list(shape)} does not hold three gates")
        return shape

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        reset, update, new = np.split(value, 3, axis=-1)
        return np.concatenate([update, reset, new], axis=-1)

    def __str__(self) -> str:
        return "gates rzn to zrn"


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


def recurrent_leaf(target: Target) -> str:
    """Returns the last part of the name of a recurrent layer's variable.

    Raises:
      ValueError: when it is none.
    """
    if target.leaf not in ("kernel", "recurrent_kernel", "bias"):
        raise ValueError(
            f"{target.leaf!r} is not a Keras LSTM's or GRU's kernel, recurrent_kernel or bias"
        )
    return target.leaf


def _torch_lstm(target: Target, shapes: Sequence[Shape]) -> Layout:
    # The gates are i, f, g, o, which is Keras' order.
    if recurrent_leaf(target) != "bias":
        return Layout((Transpose((1, 0)),))
    if target.linear:
        raise ValueError("slots and averages of two biases do not add up to those of their sum")
    return Layout((), Sum())


def _torch_gru(target: Target, shapes: Sequence[Shape]) -> Layout:
    if recurrent_leaf(target) != "bias":
        return Layout((Transpose((1, 0)), SwapGates()))
    if len(target.shape) != 2:
        raise ValueError("one bias cannot stand for PyTorch's two: make the GRU with reset_after")
    return Layout((SwapGates(),), Stack())


_RECURRENT = {
    "kernel": "weight_ih_l0",
    "recurrent_kernel": "weight_hh_l0",
    "bias": "bias_ih_l0",
}
# A Keras layer holds its variables in a cell, PyTorch's has none.
_CELL = re.compile(r"(^|.*\.)(lstm|gru)_cell(_\d+)?\.")


def _recurrent_names(own: str, name: str) -> tuple[str, ...]:
    named = _torch_name(own, name, _RECURRENT)
    if named != name:
        named = _CELL.sub(r"\1", named)
    if not own.endswith("bias"):
        return (named,)
    if "bias_ih" not in named:
        raise ValueError(
            f"{name!r} is not the name of a tensor bias_ih..., whose partner is bias_hh..."
        )
    return (named, named.replace("bias_ih", "bias_hh"))


def _torch_name(own: str, name: str, leaves: Mapping[str, str], parts: int = 1) -> str:
    """Returns PyTorch's name where the renamed `name` still ends in as many parts as `own` does."""
    last = "/".join(own.split("/")[-parts:])
    stem = name.removesuffix(last)
    if last not in leaves or stem == name or (stem and stem[-1] not in "/."):
        return name
    return stem.replace("/", ".") + leaves[last]


_PLAIN = {
    "kernel": "weight",
    "bias": "bias",
    "embeddings": "weight",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def _torch(target: Target, shapes: Sequence[Shape]) -> Layout:
    if target.leaf not in _PLAIN:
        known = ", ".join(_PLAIN)
        raise ValueError(f"{target.leaf!r} is none of a plain layer's variables: {known}")
    if target.leaf != "kernel":
        return Layout(())
    return Layout((Transpose((1, 0)),)) if len(shapes[0]) == 2 else _torch_conv(target, shapes)


def _torch_names(own: str, name: str) -> tuple[str, ...]:
    return (_torch_name(own, name, _PLAIN),)


_PROJECTIONS = ("query", "key", "value")
_ATTENTION = {
    **{f"{part}/kernel": "in_proj_weight" for part in _PROJECTIONS},
    **{f"{part}/bias": "in_proj_bias" for part in _PROJECTIONS},
    "attention_output/kernel": "out_proj.weight",
    "attention_output/bias": "out_proj.bias",
}


def _torch_attention(target: Target, shapes: Sequence[Shape]) -> Layout:
    last = "/".join(target.name.split("/")[-2:])
    if last not in _ATTENTION:
        raise ValueError(f"{last!r} is none of a MultiHeadAttention's: {', '.join(_ATTENTION)}")
    part, leaf = last.split("/")
    steps: list[Conversion] = []
    rows = shapes[0][0] if shapes[0] else 0
    own = math.prod(target.shape[1:] if leaf == "kernel" else target.shape)
    if part in _PROJECTIONS and rows == 3 * own:
        # Query, key and value are in one tensor, one after the other.
        at = own * _PROJECTIONS.index(part)
        others = shapes[0][1:]
        steps.append(Slice((at, *(0 for _ in others)), (own, *others)))
    if leaf == "kernel":
        steps.append(Transpose((1, 0)))
    return Layout((*steps, _Heads(target.shape)))


@dataclass(frozen=True)
class _Heads(Reshape):
    """Splits or joins the axes of heads, which PyTorch has as one."""

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        if math.prod(shape) != math.prod(self.new):
            raise ValueError(f"{list(shape)} cannot be split into {list(self.new)}")
        return self.new

    def __str__(self) -> str:
        return f"heads {list(self.new)}"


def _attention_names(own: str, name: str) -> tuple[str, ...]:
    return (_torch_name(own, name, _ATTENTION, parts=2),)


TORCH: dict[str, NamedConversion] = {
    "torch": NamedConversion(
        "PyTorch's Linear, Conv, BatchNorm, LayerNorm and Embedding to Keras's layers, with "
        "PyTorch's names",
        _torch,
        _torch_names,
    ),
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
        "LSTM's kernel, recurrent_kernel and bias, with PyTorch's names of layer 0",
        _torch_lstm,
        _recurrent_names,
    ),
    "torch_gru": NamedConversion(
        "PyTorch GRU (gates r, z, n, two biases) to a Keras GRU's (z, r, h, reset_after=True), "
        "with PyTorch's names of layer 0",
        _torch_gru,
        _recurrent_names,
    ),
    "torch_attention": NamedConversion(
        "PyTorch MultiheadAttention's in_proj and out_proj to Keras's query, key, value and "
        "attention_output, with PyTorch's names",
        _torch_attention,
        _attention_names,
    ),
}
