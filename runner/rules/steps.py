"""The steps and functions of expressions by name, and the expressions with their tensors known.

A step is a function of the variable, the tensor's shape and the arguments in the expression; it
returns conversions. To add a step, add an entry to `STEPS`; to add the layout of a kind of layer,
to `NAMED_CONVERSIONS`, whose steps may also tell the names of tensors.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from runner.checkpoints.reader import TensorSpec
from runner.errors import nearest
from runner.rules.combinations import Combination, Concat, Fill, Stack, Sum, WeightNorm
from runner.rules.conversions import Conversion, Flip, Reshape, Shape, Slice, Transpose
from runner.rules.expressions import Expression, Function, Step, Tensor
from runner.rules.named_conversions import NAMED_CONVERSIONS
from runner.rules.resampling import Interpolate, Pad, Reduce, Repeat, Scale
from runner.rules.source_tensors import SourceTensor
from runner.rules.target import Build, ConvertedVariable
from runner.rules.vocabularies import remap

_Steps = tuple[Conversion, ...]


def _transpose(target: ConvertedVariable, shape: Shape, *axes: int) -> _Steps:
    return (Transpose(axes or tuple(reversed(range(len(shape))))),)


def _reshape(target: ConvertedVariable, shape: Shape, *sizes: int) -> _Steps:
    if -1 in sizes:
        known = math.prod(size for size in sizes if size != -1)
        rest = math.prod(shape) // known if known else 0
        sizes = tuple(rest if size == -1 else size for size in sizes)
    return (Reshape(sizes or target.shape),)


def _slice(target: ConvertedVariable, shape: Shape, ranges: str) -> _Steps:
    texts = [text.strip() for text in str(ranges).split(",")]
    if "..." in texts:
        at = texts.index("...")
        texts[at : at + 1] = [":"] * (len(shape) - len(texts) + 1)
    texts += [":"] * (len(shape) - len(texts))
    offsets, sizes, remaining = [], [], []
    try:
        for text, size in zip(texts, shape, strict=True):
            start, stop = _range(text, size)
            offsets.append(start)
            sizes.append(stop - start)
            remaining += [stop - start] * (":" in text)
    except ValueError as error:
        raise ValueError(f"[{ranges}] is not a block of {list(shape)}") from error
    block = Slice(tuple(offsets), tuple(sizes))
    return (block,) if len(remaining) == len(shape) else (block, Reshape(tuple(remaining)))


def _range(text: str, size: int) -> tuple[int, int]:
    start, colon, stop = text.partition(":")
    if not colon:
        at = int(start)
        start, stop = str(at), str(at + 1 or size)
    first, end, _ = slice(*(int(edge) if edge.strip() else None for edge in (start, stop))).indices(
        size
    )
    if first >= end:
        raise ValueError
    return first, end


def _split(target: ConvertedVariable, shape: Shape, parts: int, part: int, axis: int = 0) -> _Steps:
    if not -len(shape) <= axis < len(shape) or not 0 <= part < parts or shape[axis] % parts:
        raise ValueError(f"{list(shape)} has no part {part} of {parts} along axis {axis}")
    size = shape[axis] // parts
    offset = [0] * len(shape)
    offset[axis] = part * size
    sizes = [*shape]
    sizes[axis] = size
    return (Slice(tuple(offset), tuple(sizes)),)


def _unflatten(target: ConvertedVariable, shape: Shape, *sizes: int) -> _Steps:
    """Reorders the axis that a flatten of (channels, height, width) made to channels last."""
    axes = [at for at, size in enumerate(shape) if size == math.prod(sizes)]
    if len(axes) != 1:
        raise ValueError(f"{list(shape)} has no single axis of {math.prod(sizes)} entries")
    at, rank = axes[0], len(sizes)
    spread = (*shape[:at], *sizes, *shape[at + 1 :])
    order = [*range(at), *range(at + 1, at + rank), at, *range(at + rank, len(spread))]
    return Reshape(spread), Transpose(tuple(order)), Reshape(shape)


def _interpolate(target: ConvertedVariable, shape: Shape, *grid: int, old: str = "") -> _Steps:
    """Resizes to `grid`, by default the square that fits the variable; `old` is e.g. `14x14`."""
    if len(shape) < 2:
        raise ValueError(f"{list(shape)} holds no grid of position embeddings")
    side = math.isqrt(shape[-2])
    rows, columns = map(int, str(old).split("x")) if old else (side, side)
    others = shape[-2] - rows * columns
    if not grid:
        side = math.isqrt(target.shape[-2] - others) if len(target.shape) > 1 else 0
        grid = (side, side)
    if len(grid) != 2 or min(grid) < 1 or others < 0:
        raise ValueError(f"{list(shape)} is no grid of {rows}x{columns} for {grid}")
    return (Interpolate((rows, columns), (grid[0], grid[1]), others),)


def _tokens(target: ConvertedVariable, shape: Shape, old: str, new: str, axis: int = 0) -> _Steps:
    if not -len(shape) <= axis < len(shape) or len(shape) != len(target.shape):
        raise ValueError(f"{list(shape)} and {list(target.shape)} have no common axis {axis}")
    axis %= len(shape)
    old_tokens, new_tokens = target.read(old), target.read(new)
    sizes = {"old_size": shape[axis], "new_size": target.shape[axis]}
    if {*old_tokens}.isdisjoint(new_tokens):
        raise ValueError(
            f"no token of {new} is in {old}: they begin with {_beginning(new_tokens)} and "
            f"{_beginning(old_tokens)}, where a file holds one token a line and nothing else"
        )
    return (remap(old_tokens, new_tokens, axis, **sizes),)


def _beginning(tokens: Sequence[str]) -> str:
    return ", ".join(map(repr, tokens[:3])) or "nothing"


STEPS: Mapping[str, Build] = {
    "transpose": _transpose,
    "flip": lambda target, shape, *axes: (Flip(axes or tuple(range(len(shape)))),),
    "reshape": _reshape,
    "slice": _slice,
    "split": _split,
    "unflatten": _unflatten,
    "scale": lambda target, shape, factor: (Scale(factor * 1.0),),
    "mean": lambda target, shape, axis: (Reduce(axis, mean=True),),
    "sum": lambda target, shape, axis: (Reduce(axis, mean=False),),
    "repeat": lambda target, shape, count, axis: (Repeat(count, axis),),
    "pad": lambda target, shape, before, after, *, axis=0, value=0.0: (
        Pad(before, after, axis, value),
    ),
    "interpolate": _interpolate,
    "tokens": _tokens,
}
FUNCTIONS: Mapping[str, Callable[..., Combination]] = {
    "sum": lambda target: Sum(),
    "stack": lambda target, axis=0: Stack(axis),
    "concat": lambda target, axis=0: Concat(axis),
    "weight_norm": lambda target: WeightNorm(),
    "zeros": lambda target: Fill(0.0, target.shape),
    "ones": lambda target: Fill(1.0, target.shape),
}
_CONSTANTS = ("zeros", "ones")


def check(expression: Expression) -> None:
    """Checks the names of steps and functions and the number of their arguments.

    Raises:
      ValueError: when one is not known, or its arguments are not as it takes them.
    """
    match expression:
        case Function(name, operands, keywords):
            if name not in FUNCTIONS:
                raise ValueError(f"{name!r} is not a function, but {', '.join(FUNCTIONS)} are")
            _bind(FUNCTIONS[name], name, 1, (), keywords)
            if bool(operands) == (name in _CONSTANTS):
                raise ValueError(f"{name} takes {'no tensors' if operands else 'tensors'}")
            for operand in operands:
                check(operand)
        case Step(name, operand, arguments, keywords):
            if name in STEPS:
                _bind(STEPS[name], name, 2, arguments, keywords)
            elif name in NAMED_CONVERSIONS:
                _bind(NAMED_CONVERSIONS[name].names, name, 2, arguments, keywords)
            else:
                near = ", ".join(nearest(name, (*STEPS, *NAMED_CONVERSIONS)))
                raise ValueError(f"{name!r} is not a step; the nearest are {near}")
            check(operand)


def _bind(
    function: Callable[..., object],
    name: str,
    positional: int,
    arguments: tuple[object, ...],
    keywords: Mapping[str, object],
) -> None:
    try:
        inspect.signature(function).bind(*[None] * positional, *arguments, **keywords)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


def build_source_tensor(
    expression: Expression, source: str, target: ConvertedVariable, tensors: Iterator[TensorSpec]
) -> SourceTensor:
    """Returns the expression with its tensors, which come in the order of `names_in`.

    Raises:
      ValueError: when a step does not take the shape before it.
    """
    match expression:
        case Tensor():
            return SourceTensor(source, next(tensors))
        case Function(name, operands, keywords):
            if target.linear and name not in ("stack", "concat"):
                raise ValueError(f"slots and averages have no {name}")
            inner = tuple(
                build_source_tensor(operand, source, target, tensors) for operand in operands
            )
            if wrong := [value for value in keywords.values() if not isinstance(value, int)]:
                raise ValueError(f"{name} does not take {', '.join(map(str, wrong))}")
            return SourceTensor(source, None, (), inner, FUNCTIONS[name](target, **keywords))
        case Step(name, operand, arguments, keywords):
            value = build_source_tensor(operand, source, target, tensors)
            if name in NAMED_CONVERSIONS:
                steps = NAMED_CONVERSIONS[name].build(target, value.shape)
            else:
                try:
                    steps = STEPS[name](target, value.shape, *arguments, **keywords)
                except TypeError as error:
                    shown = ", ".join(map(str, (*arguments, *keywords.values())))
                    raise ValueError(f"{name} does not take {shown}") from error
            return replace(value, conversions=(*value.conversions, *steps))
