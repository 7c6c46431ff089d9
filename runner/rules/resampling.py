"""Steps that compute values: scales, channels averaged or repeated, padding, interpolation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.quantization import is_narrow
from runner.rules.conversions import Conversion, Shape


def _resized(shape: Shape, axis: int, size: int) -> Shape:
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"{list(shape)} has no axis {axis}")
    at = axis % len(shape)
    return (*shape[:at], size, *shape[at + 1 :])


def _fractional(value: NDArray[Any]) -> NDArray[Any]:
    """Returns integers and floats of 8 bits as float64, which holds what lies between them."""
    is_coarse = value.dtype.kind in "biu" or is_narrow(value.dtype.name)
    return value.astype(np.float64) if is_coarse else value


def _wide(value: NDArray[Any], *, exact: bool) -> NDArray[Any]:
    """Returns the array in a type of results, which are integers of `value` where `exact`."""
    return value if exact and not is_narrow(value.dtype.name) else _fractional(value)


@dataclass(frozen=True)
class Scale(Conversion):
    """Multiplies by a number."""

    factor: float

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        value = _wide(value, exact=self.factor.is_integer())
        return np.asarray(value * np.asarray(self.factor, value.dtype))

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """See `Conversion.invert`."""
        return np.asarray(value / np.asarray(self.factor, value.dtype))

    def __str__(self) -> str:
        return f"scaled by {self.factor:g}"


@dataclass(frozen=True)
class Reduce(Conversion):
    """Adds or averages along an axis, which stays with the size 1."""

    axis: int
    mean: bool

    def shape(self, shape: Shape) -> Shape:
        """See `Conversion.shape`."""
        return _resized(shape, self.axis, 1)

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        function = np.mean if self.mean else np.sum
        value = _wide(value, exact=not self.mean)
        return np.asarray(function(value, axis=self.axis, keepdims=True, dtype=value.dtype))

    def __str__(self) -> str:
        return f"{'mean' if self.mean else 'sum'} along axis {self.axis}"


@dataclass(frozen=True)
class Repeat(Conversion):
    """Takes the entries along an axis in turn until there are `count`: r, g, b, r for 4 of 3."""

    count: int
    axis: int

    def shape(self, shape: Shape) -> Shape:
        """See `Conversion.shape`."""
        return _resized(shape, self.axis, self.count)

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        index = np.arange(self.count) % value.shape[self.axis]
        return np.asarray(np.take(value, index, axis=self.axis))

    def __str__(self) -> str:
        return f"repeated to {self.count} along axis {self.axis}"


@dataclass(frozen=True)
class Pad(Conversion):
    """Adds entries of one value before and after the others along an axis."""

    before: int
    after: int
    axis: int
    value: float

    def shape(self, shape: Shape) -> Shape:
        """See `Conversion.shape`."""
        _resized(shape, self.axis, 1)  # Checks the axis.
        return _resized(shape, self.axis, self.before + shape[self.axis] + self.after)

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        widths = [(0, 0)] * value.ndim
        widths[self.axis] = (self.before, self.after)
        value = _wide(value, exact=float(self.value).is_integer())
        return np.pad(value, widths, constant_values=self.value)

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """See `Conversion.invert`; the entries that were added are left out."""
        index = np.arange(self.before, self.before + before.shape[self.axis])
        return np.take(value, index, axis=self.axis)

    def __str__(self) -> str:
        return f"padded by {self.before} and {self.after} along axis {self.axis}"


@dataclass(frozen=True)
class Interpolate(Conversion):
    """Resizes a grid of position embeddings bicubically, as vision transformers do.

    The last axis but one counts the tokens: first the `others`, such as the class token, which stay
    as they are, then the grid row by row. The values are PyTorch's, of
    `interpolate(mode="bicubic", align_corners=False)`.
    """

    old: tuple[int, int]
    new: tuple[int, int]
    others: int

    def shape(self, shape: Shape) -> Shape:
        """See `Conversion.shape`."""
        return _resized(shape, -2, self.others + self.new[0] * self.new[1])

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        value = _fractional(value)
        others, grid = np.split(value, [self.others], axis=-2)
        rows, columns = (_bicubic(*sizes) for sizes in zip(self.old, self.new, strict=True))
        grid = grid.reshape(*value.shape[:-2], *self.old, value.shape[-1])
        resized = np.einsum("ih,jw,...hwd->...ijd", rows, columns, grid, optimize=True)
        resized = resized.reshape(*value.shape[:-2], -1, value.shape[-1])
        return np.concatenate([others, resized.astype(value.dtype)], axis=-2)

    def __str__(self) -> str:
        (rows, columns), (new_rows, new_columns) = self.old, self.new
        return f"interpolated {rows}x{columns} to {new_rows}x{new_columns}"


# PyTorch's coefficient of bicubic convolution.
_CUBIC = -0.75


def _bicubic(old: int, new: int) -> NDArray[np.float64]:
    """Returns the matrix (new, old) of weights that resizes one axis."""
    center = (np.arange(new) + 0.5) * old / new - 0.5
    first = np.floor(center).astype(int) - 1
    weights = np.zeros((new, old))
    for tap in range(4):
        distance = np.abs(center - (first + tap))
        near = ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance**2 + 1
        far = _CUBIC * (((distance - 5) * distance + 8) * distance - 4)
        at = np.clip(first + tap, 0, old - 1)
        np.add.at(weights, (np.arange(new), at), np.where(distance <= 1, near, far))
    return weights
