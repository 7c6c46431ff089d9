"""The conversions of whole modules by name, between layouts people meet.

Conversions from PyTorch make a variable's name PyTorch's if the renamed name still ends as Keras's
does: the parts are joined by dots, and `kernel` is `weight`. Other names are taken as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from runner.rules import torch_layouts as torch
from runner.rules.conversions import (
    KERAS,
    TF1,
    AddForgetBias,
    Conversion,
    GateOrder,
    Shape,
    Slice,
    units_of,
)
from runner.rules.expressions import Expression, Function, Step, Tensor
from runner.rules.target import Build, ConvertedVariable, last_parts


@dataclass(frozen=True)
class NamedConversion:
    """One entry of the registry.

    Attributes:
      build: returns the steps to the variable's value; a ValueError reports what does not fit.
      names: makes the tensors' names from the variable's name and its renamed name; an argument of
        the conversion, the number of a recurrent layer, comes after them.
      others: yields further names under which the tensor may be, in order of preference.
      combination: the function that makes one tensor of several, and its axis, before the steps.
    """

    build: Build
    names: Callable[..., tuple[str, ...]] = lambda variable, name: (name,)
    others: Callable[[str, str], Iterator[str]] = lambda variable, name: iter(())
    combination: tuple[str, int] | None = None


def _unchanged(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
    return ()


def _tf1_lstm(forget_bias: float) -> Build:
    def build(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
        order = GateOrder(TF1, KERAS)
        leaf = last_parts(target, torch.RECURRENT)
        if leaf == "bias":
            plain = target.linear or not forget_bias
            return (order,) if plain else (order, AddForgetBias(forget_bias))
        if len(shape) != 2 or len(target.shape) != 2 or shape[0] <= shape[1] // 4:
            raise ValueError(f"{list(shape)} is not a kernel (inputs + units, 4 * units)")
        rows, columns = shape
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
    def build(target: ConvertedVariable, shape: Shape) -> tuple[Conversion, ...]:
        units, others = units_of(shape, KERAS), shape[:-1]
        offset = (*(0 for _ in others), units * KERAS.index(gate))
        return (Slice(offset, (*others, units)),)

    return build


def _plain(build: Build) -> NamedConversion:
    return NamedConversion(build, torch.plain_names, torch.other_names)


NAMED_CONVERSIONS: dict[str, NamedConversion] = {
    # What PyTorch's layer of the same kind is; without a kind Linear, Conv, norms and Embedding.
    "torch": _plain(torch.any_layer),
    # The same, where the kind of PyTorch's layer is said: (out, in, spatial...) to the reverse.
    **dict.fromkeys(("linear", "conv", "conv_transpose"), _plain(torch.reordered)),
    **dict.fromkeys(("norm", "embedding"), _plain(torch.any_layer)),
    "depthwise": _plain(torch.depthwise),
    # (out, in) to EinsumDense's (in, heads, size) or (heads, size, out).
    "einsum_dense": _plain(torch.einsum_dense),
    # GPT2's Conv1D, a linear layer that is (in, out) as in Keras.
    "conv1d_gpt2": _plain(torch.conv1d_gpt2),
    # (out, in, spatial...) to (spatial..., in, out); also OIHW to HWIO.
    "torch_conv": NamedConversion(torch.conv),
    # (channels * multiplier, 1, h, w) to (h, w, channels, multiplier).
    "torch_depthwise": NamedConversion(torch.depthwise_kernel),
    # (out, in) to (in, out).
    "torch_dense": NamedConversion(torch.transposed),
    # weight_ih, weight_hh and bias_ih + bias_hh of layer 0, with gates i, f, g, o.
    "torch_lstm": NamedConversion(torch.lstm, torch.recurrent_names, combination=("sum", 0)),
    # Likewise with gates r, z, n, and both biases as in Keras's reset_after=True.
    "torch_gru": NamedConversion(torch.gru, torch.recurrent_names, combination=("stack", 0)),
    # in_proj and out_proj, or projections of their own, to query, key, value, attention_output.
    "torch_attention": NamedConversion(
        torch.attention, torch.attention_names, torch.other_attention_names
    ),
    # LSTMCell's kernel (inputs + units, 4 * units) and bias, with gates i, c, f, o.
    "tf1_lstm": NamedConversion(_tf1_lstm(forget_bias=1.0)),
    "tf1_lstm_no_forget_bias": NamedConversion(_tf1_lstm(forget_bias=0.0)),
    # One tensor for each gate: rename to a name with {gate}, which stands for i, f, c, o.
    "lstm_join": NamedConversion(_unchanged, _join_names, combination=("concat", -1)),
    # One gate alone, from a Keras LSTM's tensor of all gates.
    **{f"lstm_gate_{gate}": NamedConversion(_take_gate(gate)) for gate in KERAS},
}


# The classes of Keras layers -> what `torch` is for them; for any other the plain layouts.
_BY_LAYER = {
    "DepthwiseConv1D": "depthwise",
    "DepthwiseConv2D": "depthwise",
    "EinsumDense": "einsum_dense",
    "LSTMCell": "torch_lstm",
    "SimpleRNNCell": "torch_lstm",
    "GRUCell": "torch_gru",
}


def expanded(
    expression: Expression, target: ConvertedVariable, has: Callable[[str], bool]
) -> Expression:
    """Returns an expression with the tensors that its named conversions take.

    `rnn.bias | torch_lstm` takes two. Steps before a named conversion leave names to it. `has`
    tells whether the checkpoint has a tensor of a name.

    Raises:
      ValueError: when the name is not what the conversion asks for.
    """
    if isinstance(expression, Tensor):
        return expression
    steps: list[Step] = []
    source: Expression = expression
    while isinstance(source, Step):
        steps.insert(0, source)
        source = source.operand
    if isinstance(source, Function):
        inner = tuple(expanded(operand, target, has) for operand in source.operands)
        source = Function(source.name, inner, source.keywords)
    steps = [replace(step, name=_chosen(step.name, target)) for step in steps]
    named = next((step for step in steps if step.name in NAMED_CONVERSIONS), None)
    if named is not None and isinstance(source, Tensor):
        source = _tensors(source.name, named, target, has)
    for step in steps:
        source = replace(step, operand=source)
    return source


def _tensors(
    name: str, step: Step, target: ConvertedVariable, has: Callable[[str], bool]
) -> Expression:
    """Returns what a named conversion takes in the place of the tensor `name`."""
    conversion = NAMED_CONVERSIONS[step.name]
    names = conversion.names(target.name, name, *step.arguments)
    if len(names) == 1 and not has(names[0]):
        # The file may have neither PyTorch's name nor another one of it, but the rule's.
        others = *conversion.others(target.name, name), name
        names = (next((other for other in others if has(other)), names[0]),)
    tensors = tuple(_merged(tensor, has) for tensor in names)
    if conversion.combination is None or len(tensors) == 1:
        return tensors[0]
    function, axis = conversion.combination
    return Function(function, tensors, {"axis": axis} if function != "sum" else {})


def _chosen(name: str, target: ConvertedVariable) -> str:
    """Returns the conversion that `torch` is for the kind of the variable's layer."""
    if name != "torch":
        return name
    if target.layer == "EinsumDense":
        if target.has_conv1d and target.name.endswith("kernel"):
            raise ValueError(torch.AMBIGUOUS.format(list(target.shape), "einsum_dense"))
        if torch.is_projection(target.name):
            return "torch_attention"
    return _BY_LAYER.get(target.layer, name)


def _merged(name: str, has: Callable[[str], bool]) -> Expression:
    """Returns the tensor, or the two that PyTorch's weight norm keeps in its place."""
    module, dot, leaf = name.rpartition(".")
    for pair in (
        (f"{name}_g", f"{name}_v"),
        tuple(f"{module}{dot}parametrizations.{leaf}.original{at}" for at in (0, 1)),
    ):
        if not has(name) and all(map(has, pair)):
            return Function("weight_norm", tuple(map(Tensor, pair)))
    return Tensor(name)
