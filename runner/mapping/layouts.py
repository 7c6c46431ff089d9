"""How a tensor fits a variable by its shape, and which layout all kernels of a file have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

Shape = tuple[int, ...]
# How many rows a table may have before the first one of the model, or behind the last.
_MOST_ROWS = 8


class Layout(Enum):
    """How a tensor lies compared with its variable."""

    SAME = "the axes of the model"
    FLIPPED = "outputs first, as PyTorch keeps kernels"
    OTHER = "another one, which no whole file has"


class Way(NamedTuple):
    """A way to bring a tensor to a variable's shape.

    Attributes:
      cut: the steps that take a part of it, see `Taken.cut`; empty for the whole.
      step: the steps behind, e.g. `linear | reshape`; empty for a copy.
      layout: None where one has no two axes longer than 1, so that every layout is the same.
    """

    cut: str
    step: str
    layout: Layout | None


@dataclass(frozen=True)
class Variable:
    """A variable, as its candidates depend on it.

    Attributes:
      name: its name.
      shape: its dimensions.
      layer: the class of its Keras layer, if known.
      axes: see `ConvertedVariable.axes`.
      flattened: (channels, height, width) of the map whose flattened values it reads; or empty.
    """

    name: str
    shape: Shape
    layer: str = ""
    axes: tuple[int, ...] = ()
    flattened: Shape = ()

    @property
    def leaf(self) -> str:
        """The end of its name."""
        return self.name.rpartition("/")[2]

    @property
    def is_table(self) -> bool:
        """Whether it is a table of rows, which no framework transposes."""
        return "embedding" in self.leaf or self.layer.endswith("Embedding")


def channels_first(axes: Sequence[int]) -> Shape:
    """Returns the axes of a map as PyTorch flattens it; Keras has the channels last."""
    return (*axes[-1:], *axes[:-1])


def ways(variable: Variable, shape: Shape) -> list[Way]:
    """Returns the ways in which a tensor of a shape may be a variable."""
    if variable.is_table:
        return _rows(variable.shape, shape)
    some = [*reversed(fits(variable.shape, shape))]
    if variable.flattened and variable.leaf == "kernel" and "linear" in {way.step for way in some}:
        step = f"linear | unflatten({listed(variable.flattened)})"
        some.insert(0, Way("", step, Layout.FLIPPED))
    others = []
    if variable.layer.endswith("Transpose") and len(shape) == len(variable.shape) > 2:
        # Flax and Haiku reverse the kernels of transposed convolutions.
        window = range(len(shape) - 2)
        turned = (*shape[:-2], *shape[:-3:-1])
        order = listed((*window, len(shape) - 1, len(shape) - 2))
        if shape == variable.shape:
            others.append(f"flip({listed(window)})")
        if turned == variable.shape:
            others.append(f"flip({listed(window)}) | transpose({order})")
    if len(shape) == len(variable.shape) == 3 and min(shape) > 1:
        for axes in itertools.permutations(range(3)):
            turned = tuple(shape[axis] for axis in axes)
            known = axes == (0, 1, 2) or axes == (2, 1, 0)
            if turned == variable.shape and not (known and (some or others)):
                others.append(f"transpose({listed(axes)})")
    return [*some, *(Way("", step, Layout.OTHER) for step in others)]


def _rows(rows: Shape, shape: Shape) -> list[Way]:
    """Returns the ways to a table; one may have more rows than the model before or behind."""
    if math.prod(shape) == math.prod(rows):
        if shape[-1] == rows[-1]:
            return [Way("", "" if shape == rows else "reshape", Layout.SAME)]
        # The kernel of the outputs, which may lie beside the table of the inputs.
        return [*fits(rows, shape)]
    if len(shape) != 2 or len(rows) != 2 or shape[1] != rows[1]:
        return []
    more = shape[0] - rows[0]
    cuts = (f"[{more}:]", f"[:{rows[0]}]") if 0 < more <= _MOST_ROWS else ()
    return [Way(cut, "", Layout.SAME) for cut in cuts]


@lru_cache(maxsize=1 << 14)
def fits(variable: Shape, tensor: Shape) -> tuple[Way, ...]:
    """Returns the ways to bring a tensor of one shape to another, at most one of each layout."""
    if math.prod(variable) != math.prod(tensor):
        return ()
    if min(len([size for size in shape if size != 1]) for shape in (variable, tensor)) < 2:
        return (Way("", "" if variable == tensor else "reshape", None),)
    ways = []
    if _splits(variable, tensor) or _splits(tensor, variable):
        ways.append(Way("", "" if variable == tensor else "reshape", Layout.SAME))
    if len(variable) == len(tensor) > 2 and tensor[1] == 1:
        *window, channels, multiplier = variable
        if channels > 1 and tensor == (channels * multiplier, 1, *window):
            return (*ways, Way("", "depthwise", Layout.FLIPPED))
    for name, axes in _flips(tensor):
        flipped = tuple(tensor[axis] for axis in axes)
        if flipped == variable:
            return (*ways, Way("", name, Layout.FLIPPED))
        if _splits(variable, flipped) or _splits(flipped, variable):
            return (*ways, Way("", f"{name} | reshape", Layout.FLIPPED))
    if len(variable) == 3 and tensor == (variable[0] * variable[2], variable[1]):
        heads = ", ".join(str(variable[axis]) for axis in (0, 2, 1))
        return (*ways, Way("", f"reshape({heads}) | transpose(0, 2, 1)", Layout.FLIPPED))
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
    return None, "no kernel that is not square decides"


def listed(numbers: Iterable[int]) -> str:
    """Returns numbers as steps have them."""
    return ", ".join(map(str, numbers))
