"""Parts of a fused tensor: runs of an axis, or parts that follow each other in each head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.mapping.layouts import Shape, listed

# How many parts a fused tensor may have, and how many heads a matrix whose shape does not tell.
MOST_PARTS, _MOST_HEADS = 8, 64


@dataclass(frozen=True)
class Cut:
    """A part of an axis: a run of it, or one of the `parts` that follow each other in each head.

    Attributes:
      start: where the run begins, or the number of the part.
      size: how long the run is, or the part in one head.
      heads: 0 for a run.
      parts: how many parts a head has.
      whole: how long the axis is.
    """

    start: int
    size: int
    heads: int = 0
    parts: int = 1
    whole: int = 0

    def steps(self, shape: Shape, axis: int) -> str:
        """Returns the steps of a rule that take it out of a tensor."""
        if not self.heads:
            if shape[axis] % self.size == self.start % self.size == 0:
                number = self.start // self.size
                return f"split({shape[axis] // self.size}, {number}, axis={axis})"
            return f"[{':, ' * axis}{self.start}:{self.start + self.size}]"
        before, after = shape[:axis], shape[axis + 1 :]
        spread = (*before, self.heads, self.parts, self.size, *after)
        joined = (*before, self.heads * self.size, *after)
        index = f"{':, ' * (axis + 1)}{self.start}"
        return f"reshape({listed(spread)}) | [{index}] | reshape({listed(joined)})"

    def of_record(self, record: NDArray[Any]) -> NDArray[Any] | None:
        """Returns the part of what a fused module computed, whose channels are last or second."""
        if record.shape[-1] != self.whole and record.ndim > 2 and record.shape[1] == self.whole:
            record = np.moveaxis(record, 1, -1)
        *before, last = record.shape
        if last != self.whole:
            return None
        if not self.heads:
            return record[..., self.start : self.start + self.size]
        spread = record.reshape(*before, self.heads, self.parts, self.size)
        return spread[..., self.start, :].reshape(*before, self.heads * self.size)

    def overlaps(self, other: Cut) -> bool:
        """Whether two parts of one tensor share values, or do not come of one division."""
        if self.heads or other.heads:
            alike = (self.heads, self.parts, self.size) == (other.heads, other.parts, other.size)
            return not alike or self.start == other.start
        return self.start < other.start + other.size and other.start < self.start + self.size


def cuts(whole: int, part: int, shapes: Sequence[Shape]) -> list[Cut]:
    """Returns the parts of an axis; `shapes` with an axis for heads tell interleaved ones."""
    step = math.gcd(whole, part)
    starts = range(0, whole - part + 1, step)[: MOST_PARTS + 1]
    result = [Cut(start, part, whole=whole) for start in starts]
    for shape in shapes:
        if len(shape) < 2:
            continue
        # (inputs, heads, size) of a kernel, (heads, size) of a bias; a matrix does not tell.
        heads, size = shape[-2:]
        known = [heads] if heads * size == part else []
        for count in known or (_divisors(part) if len(shapes[0]) == 2 else []):
            if whole % part == 0 and count > 1:
                parts = whole // part
                more = [Cut(n, part // count, count, parts, whole) for n in range(parts)]
                result += [cut for cut in more if cut not in result]
    return result


def _divisors(part: int) -> list[int]:
    """Returns the numbers of heads that a matrix may have."""
    return [heads for heads in range(2, _MOST_HEADS + 1) if part % heads == 0 and heads < part]
