"""The steps from a tensor to a variable's value: casts, axes, slices, gates."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.reader import is_number, parse_dtype

Shape = tuple[int, ...]


class Conversion(abc.ABC):
    """One step from a checkpoint's tensor to a variable's value; each is a frozen dataclass.

    `str` gives a few words for the plan, e.g. `transposed (3, 2, 0, 1)`.
    """

    @property
    def needs_initial(self) -> bool:
        """Whether `apply` must be given the variable's initial value, of which it keeps a part."""
        return False

    def shape(self, shape: Shape) -> Shape:
        """Returns the shape that a tensor of this shape has afterwards; here the same.

        Raises:
          ValueError: when a tensor of this shape cannot be converted.
        """
        return shape

    @abc.abstractmethod
    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """Returns the converted value.

        Raises:
          ValueError: when this value cannot be converted.
        """

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """Returns a tensor that converts to `value`; what is lost on the way is as in `before`.

        Raises:
          ValueError: when there is no such tensor, or more than one.
        """
        raise ValueError(f"{self} has no inverse")


@dataclass(frozen=True)
class Cast(Conversion):
    """Changes the element type to one of NumPy or `ml_dtypes`, e.g. `bfloat16`."""

    dtype: str

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`; a value outside the new type's range is a ValueError."""
        target = parse_dtype(self.dtype)
        if value.dtype.kind == "c" and target.kind != "c":
            if np.any(value.imag):
                raise ValueError(f"complex values have no place in {self.dtype}")
            value = value.real
        with np.errstate(over="ignore", invalid="ignore"):
            converted = value.astype(target)
            if target.kind in "iu":
                lost = converted.astype(np.float64) != np.trunc(value.astype(np.float64))
            else:
                lost = np.isfinite(value) & ~np.isfinite(converted)
        if lost.any():
            raise ValueError(f"{int(lost.sum())} values are outside the range of {self.dtype}")
        return converted

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """See `Conversion.invert`."""
        return Cast(before.dtype.name).apply(value)

    def __str__(self) -> str:
        return f"cast to {self.dtype}"


@dataclass(frozen=True)
class Transpose(Conversion):
    """Reorders the axes as `numpy.transpose` does."""

    axes: Shape

    def shape(self, shape: Shape) -> Shape:
        """See `Conversion.shape`."""
        if sorted(self.axes) != list(range(len(shape))):
            raise ValueError(f"axes {list(self.axes)} do not permute the axes of {list(shape)}")
        return tuple(shape[axis] for axis in self.axes)

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        return np.transpose(value, self.axes)

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """See `Conversion.invert`."""
        return np.transpose(value, np.argsort(self.axes))

    def __str__(self) -> str:
        return f"transposed {self.axes}"


@dataclass(frozen=True)
class Flip(Conversion):
    """Reverses the order of the entries along axes, as `numpy.flip` does."""

    axes: Shape

    def shape(self, shape: Shape) -> Shape:
        """See `Conversion.shape`."""
        numbers = range(-len(shape), len(shape))
        if len({axis % len(shape) for axis in self.axes if axis in numbers}) < len(self.axes):
            raise ValueError(f"axes {list(self.axes)} are not different axes of {list(shape)}")
        return shape

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        return np.flip(value, self.axes)

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """See `Conversion.invert`."""
        return np.flip(value, self.axes)

    def __str__(self) -> str:
        return f"flipped along {self.axes}"


@dataclass(frozen=True)
class Reshape(Conversion):
    """Gives the elements, in row-major order, another shape."""

    new: Shape

    def shape(self, shape: Shape) -> Shape:
        """See `Conversion.shape`."""
        if math.prod(shape) != math.prod(self.new):
            raise ValueError(f"{list(shape)} cannot be reshaped to {list(self.new)}")
        return self.new

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        return value.reshape(self.new)

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """See `Conversion.invert`."""
        return value.reshape(before.shape)

    def __str__(self) -> str:
        return f"reshaped to {list(self.new)}"


@dataclass(frozen=True)
class Slice(Conversion):
    """Takes the block of `size` that begins at `offset`, for each dimension."""

    offset: Shape
    size: Shape

    def shape(self, shape: Shape) -> Shape:
        """See `Conversion.shape`."""
        return self.size

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        return value[_block(self.offset, self.size)]

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """See `Conversion.invert`."""
        result = before.copy()
        result[_block(self.offset, self.size)] = value
        return result

    def __str__(self) -> str:
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

    old: Shape
    new: Shape
    offset: Shape

    @property
    def needs_initial(self) -> bool:
        """See `Conversion.needs_initial`."""
        return self._common() != self.new

    def shape(self, shape: Shape) -> Shape:
        """See `Conversion.shape`."""
        return self.new

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        common = value[_block(self.offset, self._common())]
        if not self.needs_initial:
            return common
        result = np.array(initial)
        result[_block((0,) * len(self.new), self._common())] = common
        return result

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """See `Conversion.invert`."""
        result, common = before.copy(), self._common()
        result[_block(self.offset, common)] = value[_block((0,) * len(common), common)]
        return result

    @property
    def dropped(self) -> bool:
        """Whether a part of the tensor is left out, other than by a partition."""
        pairs = zip(self.old, self.new, strict=True)
        return not any(self.offset) and any(old > new for old, new in pairs)

    def __str__(self) -> str:
        common = self._common()
        larger = [shape for shape in (self.old, self.new) if shape != common] or [self.old]
        wholes = " and ".join(str(list(shape)) for shape in larger)
        rest = ", the rest keeps its initial value" if self.needs_initial else ""
        return f"common part {list(common)} of {wholes}{rest}"

    def _common(self) -> Shape:
        return tuple(
            max(0, min(old - offset, new))
            for old, new, offset in zip(self.old, self.new, self.offset, strict=True)
        )


# A layer's gates are blocks of the last axis, one letter each. Of an LSTM i: input, f: forget,
# c: candidate (PyTorch writes g, TensorFlow 1 j), o: output; of a GRU r: reset, z: update, n: new.
KERAS, TF1 = "ifco", "icfo"
KERAS_GRU, TORCH_GRU = "zrn", "rzn"


def units_of(shape: Shape, gates: str) -> int:
    """Returns the units of a layer whose gates are blocks of the last axis."""
    if not shape or shape[-1] % len(gates):
        raise ValueError(f"the last axis of {list(shape)} does not hold {len(gates)} gates")
    return shape[-1] // len(gates)


@dataclass(frozen=True)
class GateOrder(Conversion):
    """Reorders the gates along the last axis."""

    old: str
    new: str

    def shape(self, shape: Shape) -> Shape:
        """See `Conversion.shape`."""
        units_of(shape, self.old)
        return shape

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        gates = dict(zip(self.old, np.split(value, len(self.old), axis=-1), strict=True))
        return np.concatenate([gates[gate] for gate in self.new], axis=-1)

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """See `Conversion.invert`."""
        return GateOrder(self.new, self.old).apply(value)

    def __str__(self) -> str:
        return f"gates {self.old} to {self.new}"


@dataclass(frozen=True)
class AddForgetBias(Conversion):
    """Adds a constant to the forget gate's bias, which a TensorFlow 1 cell adds at every step."""

    amount: float

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        result = value.copy()
        # The split gives views of the copy.
        np.split(result, len(KERAS), axis=-1)[KERAS.index("f")][...] += self.amount
        return result

    def invert(self, value: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
        """See `Conversion.invert`."""
        return AddForgetBias(-self.amount).apply(value)

    def __str__(self) -> str:
        return f"forget bias +{self.amount:g}"


def _block(offset: Sequence[int], size: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + length) for at, length in zip(offset, size, strict=True))


def is_float(dtype: np.dtype[Any]) -> bool:
    """Returns whether these are real floating-point numbers, of NumPy or of `ml_dtypes`."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def casts_freely(old: str, new: str) -> bool:
    """Returns whether a cast needs no permission: float to float, or a wider type of one kind.

    A narrower float keeps the range or fails to be restored, so that it loses precision only;
    between integers and floats a cast always needs permission.
    """
    if not (is_number(old) and is_number(new)):
        return False
    source, target = parse_dtype(old), parse_dtype(new)
    if is_float(source) and is_float(target):
        return True
    integers = source.kind in "iu" and target.kind in "iu"
    complexes = source.kind == target.kind == "c"
    return (integers or complexes) and np.can_cast(source, target, "safe")
