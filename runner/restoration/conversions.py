"""What happens to a tensor between its checkpoint and its variable."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.restoration import dtypes


class Conversion(abc.ABC):
    """One step from a checkpoint's tensor to a variable's value; each is a frozen dataclass."""

    @property
    def needs_initial(self) -> bool:
        """Whether `apply` must be given the variable's initial value, of which it keeps a part."""
        return False

    @abc.abstractmethod
    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape that a tensor of this shape has afterwards.

        Raises:
          ValueError: when a tensor of this shape cannot be converted.
        """

    @abc.abstractmethod
    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """Returns the converted value.

        Raises:
          ValueError: when this value cannot be converted.
        """

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns a few words for the plan, e.g. `transposed (3, 2, 0, 1)`."""


class Combination(abc.ABC):
    """Makes one tensor of several of one checkpoint; each is a frozen dataclass."""

    @abc.abstractmethod
    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Returns the shape of the combined tensor.

        Raises:
          ValueError: when tensors of these shapes cannot be combined.
        """

    @abc.abstractmethod
    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Returns the combined value."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns a few words for the plan, e.g. `sum`."""


@dataclass(frozen=True)
class Cast(Conversion):
    """Changes the element type.

    Attributes:
      dtype: NumPy's name of the new type, or that of `ml_dtypes`, e.g. `bfloat16`.
    """

    dtype: str

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        return shape

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`; a value outside the new type's range is a ValueError."""
        target = dtypes.parse(self.dtype)
        if value.dtype.kind == "c" and target.kind != "c":
            if value.imag.any():
                count = int(np.count_nonzero(value.imag))
                raise ValueError(f"{count} values have an imaginary part, which {self.dtype} lacks")
            value = value.real
        with np.errstate(over="ignore", invalid="ignore"):
            converted = value.astype(target)
        if dtypes.is_float(target):
            lost = ~np.isfinite(converted) & np.isfinite(value)
        elif target.kind in "iu" and value.dtype.kind != "b":
            lost = _outside(value, np.iinfo(target))
        else:
            lost = np.zeros(value.shape, np.bool_)
        if lost.any():
            raise ValueError(f"{int(lost.sum())} values are outside the range of {self.dtype}")
        return converted

    def describe(self) -> str:
        """See `Conversion.describe`."""
        return f"cast to {self.dtype}"


@dataclass(frozen=True)
class Transpose(Conversion):
    """Reorders the axes.

    Attributes:
      axes: for each axis of the result the tensor's axis, as `numpy.transpose` takes them.
    """

    axes: tuple[int, ...]

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        if sorted(self.axes) != list(range(len(shape))):
            raise ValueError(f"axes {list(self.axes)} do not permute the axes of {list(shape)}")
        return tuple(shape[axis] for axis in self.axes)

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        return np.transpose(value, self.axes)

    def describe(self) -> str:
        """See `Conversion.describe`."""
        return f"transposed {self.axes}"


@dataclass(frozen=True)
class Reshape(Conversion):
    """Gives the elements, in row-major order, another shape.

    Attributes:
      new: the shape of the result, of the same size.
    """

    new: tuple[int, ...]

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        if math.prod(shape) != math.prod(self.new):
            raise ValueError(f"{list(shape)} and {list(self.new)} differ in size")
        return self.new

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        return value.reshape(self.new)

    def describe(self) -> str:
        """See `Conversion.describe`."""
        return f"reshaped to {list(self.new)}"


@dataclass(frozen=True)
class Slice(Conversion):
    """Takes the block of `size` that begins at `offset`, for each dimension."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        ends = [offset + size for offset, size in zip(self.offset, self.size, strict=True)]
        if len(shape) != len(ends) or any(
            end > have for end, have in zip(ends, shape, strict=True)
        ):
            raise ValueError(f"{list(shape)} has no block of {list(self.size)} at {self.offset}")
        return self.size

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        return value[_block(self.offset, self.size)]

    def describe(self) -> str:
        """See `Conversion.describe`."""
        ranges = (f"{at}:{at + size}" for at, size in zip(self.offset, self.size, strict=True))
        return f"slice [{', '.join(ranges)}]"


@dataclass(frozen=True)
class PadOrSlice(Conversion):
    """Takes what tensor and variable have in common; the rest keeps its initial value.

    Attributes:
      old: the tensor's shape.
      new: the variable's shape.
      offset: where the variable begins in a whole that starts at the tensor's origin; other than
        zeros where it is one part of a partitioned variable.
    """

    old: tuple[int, ...]
    new: tuple[int, ...]
    offset: tuple[int, ...]

    @property
    def needs_initial(self) -> bool:
        """See `Conversion.needs_initial`."""
        return self._common() != self.new

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        if len(shape) != len(self.new):
            raise ValueError(f"{list(shape)} and {list(self.new)} differ in rank")
        return self.new

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        common = value[_block(self.offset, self._common())]
        if not self.needs_initial:
            return common
        result = copy_of_initial(initial, self.new)
        result[_block((0,) * len(self.new), self._common())] = common
        return result

    def describe(self) -> str:
        """See `Conversion.describe`."""
        kept = ", the rest keeps its initial value" if self.needs_initial else ""
        return f"common part {list(self._common())} of {list(self.old)}{kept}"

    def _common(self) -> tuple[int, ...]:
        return tuple(
            max(0, min(old - offset, new))
            for old, new, offset in zip(self.old, self.new, self.offset, strict=True)
        )


def _outside(value: NDArray[Any], limits: np.iinfo[Any]) -> NDArray[np.bool_]:
    outside: NDArray[np.bool_]
    if value.dtype.kind in "iu":
        outside = (value < limits.min) | (value > limits.max)
        return outside
    # A wide type's greatest integer is no float: the next power of two is, and is out of range.
    whole = np.trunc(value)
    outside = ~((whole >= float(limits.min)) & (whole < float(limits.max) + 1.0))
    return outside


def copy_of_initial(initial: NDArray[Any] | None, shape: tuple[int, ...]) -> NDArray[Any]:
    """Returns a copy of the variable's initial value, checked to be one."""
    if initial is None or initial.shape != shape:
        given = None if initial is None else list(initial.shape)
        raise ValueError(f"an initial value of shape {list(shape)} is needed, not {given}")
    return initial.copy()


def _block(offset: Sequence[int], size: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + length) for at, length in zip(offset, size, strict=True))
