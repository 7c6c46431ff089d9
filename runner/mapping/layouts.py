"""How a tensor fits a variable by its shape, and which layout all kernels of a file have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

Shape = tuple[int, ...]


class Layout(Enum):
    """How a tensor lies compared with its variable."""

    SAME = "the axes of the model"
    FLIPPED = "outputs first, as PyTorch keeps kernels"


@dataclass(frozen=True)
class Fit:
    """A way to bring a tensor to a variable's shape.

    Attributes:
      step: the steps of a rule's expression, e.g. `linear | reshape`; empty for a copy.
      layout: None where one has no two axes longer than 1, so that every layout is the same.
    """

    step: str
    layout: Layout | None


@lru_cache(maxsize=1 << 14)
def fits(variable: Shape, tensor: Shape) -> tuple[Fit, ...]:
    """Returns the ways to bring a tensor of one shape to another, at most one of each layout."""
    if math.prod(variable) != math.prod(tensor):
        return ()
    if min(len([size for size in shape if size != 1]) for shape in (variable, tensor)) < 2:
        return (Fit("" if variable == tensor else "reshape", None),)
    ways = []
    if _splits(variable, tensor) or _splits(tensor, variable):
        ways.append(Fit("" if variable == tensor else "reshape", Layout.SAME))
    if len(variable) == len(tensor) > 2 and tensor[1] == 1:
        *window, channels, multiplier = variable
        if channels > 1 and tensor == (channels * multiplier, 1, *window):
            return (*ways, Fit("depthwise", Layout.FLIPPED))
    for name, axes in _flips(tensor):
        flipped = tuple(tensor[axis] for axis in axes)
        if flipped == variable:
            return (*ways, Fit(name, Layout.FLIPPED))
        if _splits(variable, flipped) or _splits(flipped, variable):
            return (*ways, Fit(f"{name} | reshape", Layout.FLIPPED))
    if len(variable) == 3 and tensor == (variable[0] * variable[2], variable[1]):
        heads = ", ".join(str(variable[axis]) for axis in (0, 2, 1))
        return (*ways, Fit(f"reshape({heads}) | transpose(0, 2, 1)", Layout.FLIPPED))
    return tuple(ways)


def _flips(tensor: Shape) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Yields the named conversions from PyTorch that apply to this rank, with their axes."""
    rank = len(tensor)
    if rank == 2:
        yield "linear", (1, 0)
    elif rank > 2:
        yield "conv", (*range(2, rank), 1, 0)


def _splits(whole: Shape, parts: Shape) -> bool:
    """Returns whether each axis of a matrix is the product of adjacent axes of another shape.

    Kernels of convolutions that differ in more than axes of length 1 are none of each other's.
    """
    axes, sizes = ([size for size in shape if size != 1] for shape in (whole, parts))
    if axes == sizes:
        return True
    if len(axes) > 2:
        return False
    at = 0
    for size in axes:
        product = 1
        while product < size and at < len(sizes):
            product *= sizes[at]
            at += 1
        if product != size:
            return False
    return at == len(sizes)


def outputs_first(kernel: Shape, bias: Shape) -> bool | None:
    """Returns whether a kernel's first axis is as long as its bias; None if that tells nothing."""
    size = math.prod(bias)
    first, last = kernel[0] == size, _ends_with(kernel, size)
    return None if first == last else first


def _ends_with(kernel: Shape, size: int) -> bool:
    product = 1
    for length in reversed(kernel):
        product *= length
        if product >= size:
            break
    return product == size


def decide(
    variables: Sequence[Shape], tensors: Sequence[Shape], bias_votes: int
) -> tuple[Layout | None, str]:
    """Decides on the layout of all kernels of a file.

    Args:
      variables: the shapes of the model's kernels.
      tensors: the shapes of the file's matrices and larger tensors.
      bias_votes: how many more kernels lie outputs first by their biases than inputs first.

    Returns:
      The layout, None if nothing decides, and the reason.
    """
    shapes = {*tensors}
    flipped = same = 0
    for variable in variables:
        ways = [way.layout for tensor in shapes for way in fits(variable, tensor)]
        if Layout.SAME not in ways and Layout.FLIPPED in ways:
            flipped += 1
        elif Layout.FLIPPED not in ways and Layout.SAME in ways:
            same += 1
    if flipped != same:
        layout = Layout.FLIPPED if flipped > same else Layout.SAME
        return layout, f"{max(flipped, same)} kernels fit only so"
    if bias_votes:
        layout = Layout.FLIPPED if bias_votes > 0 else Layout.SAME
        return layout, f"the biases of {abs(bias_votes)} kernels are as long as that axis"
    mine, theirs = Counter(map(_matrix, variables)), Counter(tensors)
    copied = (mine & theirs).total()
    turned = (Counter({shape[::-1]: count for shape, count in mine.items()}) & theirs).total()
    if copied != turned:
        layout = Layout.FLIPPED if turned > copied else Layout.SAME
        return layout, f"so {abs(turned - copied)} more kernels have a tensor of their shape"
    return None, "no kernel that is not square decides"


def _matrix(shape: Shape) -> Shape:
    """Returns the matrix that a kernel with one more axis for heads stands for."""
    if len(shape) != 3:
        return shape
    first, heads, last = shape
    # Heads are at the longer end: (inputs, heads, size) or (heads, size, outputs).
    return (first, heads * last) if first >= last else (first * heads, last)
