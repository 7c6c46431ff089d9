"""The layouts and names of PyTorch's layers, beside Keras's."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from runner.rules.conversions import (
    KERAS_GRU,
    TORCH_GRU,
    Conversion,
    GateOrder,
    Reshape,
    Shape,
    Slice,
    Transpose,
)
from runner.rules.target import ConvertedVariable, last_parts

AMBIGUOUS = (
    "a square kernel {} may be of PyTorch's Linear or of GPT2's Conv1D, which the checkpoint has "
    "too: say {} or conv1d_gpt2 in place of torch"
)
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
# Also of layers that name a weight as no other does, such as PReLU and KerasHub's norms.
TORCH_LEAVES = {**_PLAIN, "scale": "weight", "alpha": "weight"}
RECURRENT = {
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
# A Keras layer holds its variables in a cell, and a bidirectional one in two layers; PyTorch's has
# neither.
_CELL = re.compile(r"(^|.*\.)(lstm|gru|simple_rnn)_cell(_\d+)?\.")
_DIRECTION = re.compile(r"(^|.*\.)(forward|backward)_[^.]*\.")
_BACKWARD = re.compile(r"(^|.*/)backward_[^/]*/")


def _torch_name(variable: str, name: str, ends: Mapping[str, str], parts: int = 1) -> str:
    """Returns PyTorch's name if the renamed `name` still ends in the last parts of `variable`."""
    last = "/".join(variable.split("/")[-parts:])
    stem = name.removesuffix(last)
    if last not in ends or stem == name or (stem and stem[-1] not in "/."):
        return name
    return stem.replace("/", ".") + ends[last]


def plain_names(variable: str, name: str) -> tuple[str, ...]:
    """Returns PyTorch's name for a variable of most layers."""
    return (_torch_name(variable, name, _PLAIN),)


def other_names(variable: str, name: str) -> Iterator[str]:
    """Yields names of layers whose variables PyTorch calls otherwise, or as Keras does."""
    yield _torch_name(variable, name, TORCH_LEAVES)
    yield name.replace("/", ".")


# How modules name their projections and their output where these are layers of their own.
_SEPARATE = (("{}", "attention_output"), ("{:.1}_proj", "o_proj"), ("{:.1}", "o"))


def is_projection(variable: str) -> bool:
    """Returns whether the variable is one of Keras's `MultiHeadAttention`."""
    return "/".join(variable.split("/")[-2:]) in _ATTENTION


def attention_names(variable: str, name: str) -> tuple[str, ...]:
    """Returns PyTorch's name for a variable of `nn.MultiheadAttention`."""
    return (_torch_name(variable, name, _ATTENTION, parts=2),)


def other_attention_names(variable: str, name: str) -> Iterator[str]:
    """Yields the names of projections that are layers of their own."""
    for projection, output in _SEPARATE:
        layers = {part: projection.format(part) for part in _PROJECTIONS}
        layers["attention_output"] = output
        for dot in (".", "_"):  # Within `nn.MultiheadAttention`, weights alone are separate.
            ends = {
                f"{part}/{leaf}": f"{layer}{dot}{_PLAIN[leaf]}"
                for part, layer in layers.items()
                for leaf in ("kernel", "bias")
            }
            yield _torch_name(variable, name, ends, parts=2)
    yield _torch_name(variable, name, _PLAIN)  # A rule names the projection.


def recurrent_names(variable: str, name: str, layer: int = 0) -> tuple[str, ...]:
    """Returns the names of a weight, or of the two biases, of a layer of a recurrent network."""
    torch_name = _torch_name(variable, name, RECURRENT)
    if torch_name != name:
        torch_name = _DIRECTION.sub(r"\1", _CELL.sub(r"\1", torch_name))
        torch_name = torch_name.removesuffix("0") + str(layer)
        torch_name += "_reverse" * bool(_BACKWARD.match(variable))
    if not variable.endswith("bias"):
        return (torch_name,)
    if "bias_ih" not in torch_name:
        raise ValueError(
            f"{name!r} is not the name of a tensor bias_ih..., whose partner is bias_hh..."
        )
    return (torch_name, torch_name.replace("bias_ih", "bias_hh"))


def transposed(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
    """Reverses a matrix."""
    return (Transpose((1, 0)),)


def reordered(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
    """Reverses a kernel, and takes a bias as it is."""
    return conv(target, shape) if len(shape) > 1 else ()


def conv(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
    """Moves (out, in, spatial...) to (spatial..., in, out); transposed convolutions likewise."""
    return (Transpose((*range(2, len(shape)), 1, 0)),)


def depthwise_kernel(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
    """Moves (channels * multiplier, 1, spatial...) to (spatial..., channels, multiplier)."""
    # PyTorch counts the outputs channel by channel: index = channel * multiplier + m.
    out, one, *window = shape if len(shape) > 2 else (0, 0)
    if one != 1 or len(shape) != len(target.shape):
        raise ValueError(f"{list(shape)} is not a depthwise kernel (out, 1, height, width)")
    channels = target.shape[-2]
    if not channels or out % channels:
        raise ValueError(f"{out} outputs are not a multiple of the {channels} channels")
    split = Reshape((channels, out // channels, *window))
    return split, Transpose((*range(2, 2 + len(window)), 0, 1))


def depthwise(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
    """Changes a depthwise kernel, and takes a bias as it is."""
    return depthwise_kernel(target, shape) if len(shape) > 1 else ()


def lstm(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
    """Transposes the weights of an LSTM."""
    # The gates are i, f, g, o, which is Keras' order.
    if last_parts(target, RECURRENT) != "bias":
        return transposed(target, shape)
    if target.linear:
        raise ValueError("slots and averages of two biases do not add up to the sum's")
    return ()


def gru(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
    """Transposes the weights of a GRU, and reorders its gates."""
    order = GateOrder(TORCH_GRU, KERAS_GRU)
    if last_parts(target, RECURRENT) != "bias":
        return Transpose((1, 0)), order
    if len(target.shape) != 2:
        raise ValueError("one bias cannot stand for PyTorch's two: make the GRU with reset_after")
    return (order,)


def any_layer(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
    """Changes a layer's variable by its name and shape."""
    leaf = target.name.rpartition("/")[2]
    if leaf in TORCH_LEAVES or (target.layer and not leaf.endswith("kernel")):
        if leaf == "kernel":
            if target.has_conv1d and len(shape) == 2 and len({*shape}) == 1:
                raise ValueError(AMBIGUOUS.format(list(shape), "linear"))
            return conv(target, shape)
        # A layer's scale may have axes of size 1 there, PReLU's slopes here.
        thin = [tuple(n for n in sizes if n != 1) for sizes in (shape, target.shape)]
        return (Reshape(target.shape),) * (shape != target.shape and thin[0] == thin[1])
    last_parts(target, _PLAIN)
    return ()


def einsum_dense(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
    """Splits the axis that PyTorch has for all heads, and orders axes as the layer's equation."""
    axes = target.axes or (*range(len(target.shape)),)
    if [*axes] == sorted(axes) or len(shape) < 2:
        return *reordered(target, shape), Reshape(target.shape)
    split = Reshape(tuple(target.shape[axis] for axis in axes))
    return *conv(target, shape), split, Transpose(tuple(map(axes.index, sorted(axes))))


def conv1d_gpt2(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
    """Takes the kernel as it is, with axes for the heads where the variable has them."""
    return (Reshape(target.shape),) * (shape != target.shape)


def attention(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
    """Takes a projection, also out of a tensor of all three."""
    part, leaf = last_parts(target, _ATTENTION, parts=2).split("/")
    steps: tuple[Conversion, ...] = ()
    rows = math.prod(target.shape[1:] if leaf == "kernel" else target.shape)
    if part in _PROJECTIONS and shape[:1] == (3 * rows,):
        # Query, key and value are in one tensor, one after the other.
        offset, others = rows * _PROJECTIONS.index(part), shape[1:]
        steps = (Slice((offset, *(0 for _ in others)), (rows, *others)),)
    return *steps, *einsum_dense(target, shape)
