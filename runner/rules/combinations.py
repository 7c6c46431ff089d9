"""Makes one tensor of several: sums, stacks, joins, and the weight that weight norm divides."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.quantization import is_narrow
from runner.rules.conversions import Shape


class Combination(abc.ABC):
    """One tensor of several; each is a frozen dataclass, and `str` gives a word for the plan."""

    @abc.abstractmethod
    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """Returns the shape of the combined tensor.

        Raises:
          ValueError: when tensors of these shapes cannot be combined.
        """

    @abc.abstractmethod
    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Returns the combined value."""

    @abc.abstractmethod
    def invert(self, value: NDArray[Any], values: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """Returns values that combine into `value`; `values` are the tensors in the source.

        Raises:
          ValueError: when there are none, or not one choice of them.
        """


def _alike(shapes: Sequence[Shape], axis: int | None = None) -> Shape:
    """Returns the first of shapes that agree, but for one axis."""
    rest = {tuple(size for at, size in enumerate(shape) if at != axis) for shape in shapes}
    if len(rest) > 1 or len(set(map(len, shapes))) > 1:
        raise ValueError(f"the tensors have the shapes {[list(shape) for shape in shapes]}")
    return shapes[0]


@dataclass(frozen=True)
class Sum(Combination):
    """Adds tensors of one shape; smaller ones are broadcast as NumPy does."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """See `Combination.shape`."""
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError as error:
            listed = [list(shape) for shape in shapes]
            raise ValueError(f"the tensors have the shapes {listed}") from error

    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `Combination.apply`."""
        total = _wide(values[0])
        for value in values[1:]:
            total = total + _wide(value)
        return np.asarray(total)

    def invert(self, value: NDArray[Any], values: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """See `Combination.invert`; the first tensor of the sum's shape takes the change."""
        at = next(at for at, part in enumerate(values) if part.shape == value.shape)
        others = [part for other, part in enumerate(values) if other != at]
        return [*values[:at], np.asarray(value - self.apply(others)), *values[at + 1 :]]

    def __str__(self) -> str:
        return "summed"


@dataclass(frozen=True)
class Stack(Combination):
    """Stacks tensors of one shape along a new axis."""

    axis: int = 0

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """See `Combination.shape`."""
        first = _alike(shapes)
        if not -len(first) - 1 <= self.axis <= len(first):
            raise ValueError(f"tensors of the shape {list(first)} have no new axis {self.axis}")
        at = self.axis % (len(first) + 1)
        return (*first[:at], len(shapes), *first[at:])

    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `Combination.apply`."""
        return np.stack(values, axis=self.axis)

    def invert(self, value: NDArray[Any], values: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """See `Combination.invert`."""
        return list(np.moveaxis(value, self.axis, 0))

    def __str__(self) -> str:
        return f"stacked along axis {self.axis}" if self.axis else "stacked"


@dataclass(frozen=True)
class Concat(Combination):
    """Joins tensors along an axis, in which alone they may differ."""

    axis: int = 0

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """See `Combination.shape`."""
        rank = len(shapes[0])
        if not -rank <= self.axis < rank:
            raise ValueError(
                f"the tensors have the shapes {[list(shape) for shape in shapes]}, no axis "
                f"{self.axis}"
            )
        axis = self.axis % rank
        first = _alike(shapes, axis)
        return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])

    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `Combination.apply`."""
        return np.concatenate(values, axis=self.axis)

    def invert(self, value: NDArray[Any], values: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """See `Combination.invert`."""
        ends = np.cumsum([part.shape[self.axis] for part in values])[:-1]
        return np.split(value, ends, axis=self.axis)

    def __str__(self) -> str:
        return f"joined along axis {self.axis}"


@dataclass(frozen=True)
class WeightNorm(Combination):
    """Merges PyTorch's weight norm, `g * v / |v|`: the norm is over the axes where `g` has 1."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """See `Combination.shape`."""
        magnitude, direction = shapes if len(shapes) == 2 else ((), ())
        pairs = zip(magnitude, direction, strict=False)
        if not direction or len(magnitude) not in (0, len(direction)):
            raise ValueError(f"{list(magnitude)} and {list(direction)} are not g and v")
        if any(size not in (1, whole) for size, whole in pairs):
            raise ValueError(f"{list(magnitude)} and {list(direction)} are not g and v")
        return direction

    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `Combination.apply`."""
        magnitude, direction = values
        return np.asarray(direction * (magnitude / _norm(direction, magnitude.shape)))

    def invert(self, value: NDArray[Any], values: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """See `Combination.invert`."""
        return [_norm(value, values[0].shape), value]

    def __str__(self) -> str:
        return "weight norm merged"


def _wide(value: NDArray[Any]) -> NDArray[Any]:
    # Sums of small integers would wrap around.
    return value.astype(np.float64) if is_narrow(value.dtype.name) else value


def _norm(value: NDArray[Any], shape: Shape) -> NDArray[Any]:
    axes = tuple(at for at, size in enumerate(shape) if size == 1) if shape else None
    squares = np.square(value.astype(np.float64)).sum(axis=axes, keepdims=bool(shape))
    return np.asarray(np.sqrt(squares).astype(value.dtype))


@dataclass(frozen=True)
class Fill(Combination):
    """A constant where the source has no tensor, such as the bias that a layer lacks there."""

    value: float
    size: Shape

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """See `Combination.shape`."""
        return self.size

    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `Combination.apply`."""
        return np.full(self.size, self.value, np.float32)

    def invert(self, value: NDArray[Any], values: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """See `Combination.invert`."""
        raise ValueError("the source has no tensor for it")

    def __str__(self) -> str:
        return f"filled with {self.value:g}"
