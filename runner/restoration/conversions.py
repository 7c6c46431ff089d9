"""The steps from a tensor to a variable's value: casts, axes, slices, vocabularies."""

from __future__ import annotations

import abc
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files, word_vectors
from runner.checkpoints.formats import is_word_vectors
from runner.checkpoints.reader import is_number, parse_dtype
from runner.errors import CheckpointError


class Conversion(abc.ABC):
    """One step from a checkpoint's tensor to a variable's value; each is a frozen dataclass.

    `str` gives a few words for the plan, e.g. `transposed (3, 2, 0, 1)`.
    """

    @property
    def needs_initial(self) -> bool:
        """Whether `apply` must be given the variable's initial value, of which it keeps a part."""
        return False

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
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


class Combination(Enum):
    """Makes one tensor of several of the same shape."""

    SUM = "summed"
    STACK = "stacked"  # along a new first axis
    JOIN = "gates joined"  # along the last axis

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Returns the shape of the combined tensor.

        Raises:
          ValueError: when tensors of these shapes cannot be combined.
        """
        first = shapes[0]
        if len(set(shapes)) > 1 or (self is Combination.JOIN and not first):
            raise ValueError(f"the tensors have the shapes {[list(shape) for shape in shapes]}")
        if self is Combination.SUM:
            return first
        if self is Combination.STACK:
            return (len(shapes), *first)
        return (*first[:-1], len(shapes) * first[-1])

    def apply(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Returns the combined value."""
        if self is Combination.JOIN:
            return np.concatenate(values, axis=-1)
        stacked = np.stack(values)
        if self is Combination.STACK:
            return stacked
        return np.asarray(stacked.sum(axis=0, dtype=stacked.dtype))

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Cast(Conversion):
    """Changes the element type to one of NumPy or `ml_dtypes`, e.g. `bfloat16`."""

    dtype: str

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`; a value outside the new type's range is a ValueError."""
        target = parse_dtype(self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            converted = value.astype(target)
            if target.kind in "iu":
                lost = converted.astype(np.float64) != np.trunc(value.astype(np.float64))
            else:
                lost = np.isfinite(value) & ~np.isfinite(converted)
        if lost.any():
            raise ValueError(f"{int(lost.sum())} values are outside the range of {self.dtype}")
        return converted

    def __str__(self) -> str:
        return f"cast to {self.dtype}"


@dataclass(frozen=True)
class Transpose(Conversion):
    """Reorders the axes as `numpy.transpose` does."""

    axes: tuple[int, ...]

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        if sorted(self.axes) != list(range(len(shape))):
            raise ValueError(f"axes {list(self.axes)} do not permute the axes of {list(shape)}")
        return tuple(shape[axis] for axis in self.axes)

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        return np.transpose(value, self.axes)

    def __str__(self) -> str:
        return f"transposed {self.axes}"


@dataclass(frozen=True)
class Reshape(Conversion):
    """Gives the elements, in row-major order, another shape."""

    new: tuple[int, ...]

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        if math.prod(shape) != math.prod(self.new):
            raise ValueError(f"{list(shape)} cannot be reshaped to {list(self.new)}")
        return self.new

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        return value.reshape(self.new)

    def __str__(self) -> str:
        return f"reshaped to {list(self.new)}"


@dataclass(frozen=True)
class Slice(Conversion):
    """Takes the block of `size` that begins at `offset`, for each dimension."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        return self.size

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        return value[_block(self.offset, self.size)]

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

    old: tuple[int, ...]
    new: tuple[int, ...]
    offset: tuple[int, ...]

    @property
    def needs_initial(self) -> bool:
        """See `Conversion.needs_initial`."""
        return self._common() != self.new

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
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

    def __str__(self) -> str:
        common = self._common()
        larger = [shape for shape in (self.old, self.new) if shape != common] or [self.old]
        wholes = " and ".join(str(list(shape)) for shape in larger)
        rest = ", the rest keeps its initial value" if self.needs_initial else ""
        return f"common part {list(common)} of {wholes}{rest}"

    def _common(self) -> tuple[int, ...]:
        return tuple(
            max(0, min(old - offset, new))
            for old, new, offset in zip(self.old, self.new, self.offset, strict=True)
        )


def _block(offset: Sequence[int], size: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + length) for at, length in zip(offset, size, strict=True))


@dataclass(frozen=True)
class VocabularyRemap(Conversion):
    """Moves every token's row or column to its new place; new tokens keep their initial value.

    Attributes:
      axis: the axis that counts tokens, not negative.
      old_index: for each index of the variable along `axis` the tensor's index, -1 for a new token.
    """

    axis: int
    old_index: tuple[int, ...]

    @property
    def needs_initial(self) -> bool:
        """See `Conversion.needs_initial`."""
        return -1 in self.old_index

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Conversion.shape`."""
        return (*shape[: self.axis], len(self.old_index), *shape[self.axis + 1 :])

    def apply(self, value: NDArray[Any], initial: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Conversion.apply`."""
        index = np.asarray(self.old_index, np.int64)
        if not self.needs_initial:
            return np.take(value, index, axis=self.axis)
        result = np.array(initial)
        known = np.flatnonzero(index >= 0)
        rows = np.moveaxis(result, self.axis, 0)
        rows[known] = np.moveaxis(value, self.axis, 0)[index[known]]
        return result

    def __str__(self) -> str:
        new = self.old_index.count(-1)
        rest = f", {new:,} keep their initial value" if new else ""
        return f"{len(self.old_index) - new:,} tokens moved along axis {self.axis}{rest}"

    def part(self, start: int, size: int) -> VocabularyRemap:
        """Returns the remapping of the block of `size` tokens that begins at `start`."""
        return VocabularyRemap(self.axis, self.old_index[start : start + size])


def remap(
    old: Sequence[str], new: Sequence[str], axis: int, *, old_size: int, new_size: int
) -> VocabularyRemap:
    """Returns the remapping between two vocabularies.

    Rows beyond a vocabulary's end, e.g. buckets for unknown tokens, belong to no token: the
    checkpoint's are left out, and the variable's keep their initial value.

    `axis`, not negative, counts tokens: `old_size` in the tensor, `new_size` in the variable.

    Raises:
      ValueError: when a vocabulary is longer than its axis or names a token twice.
    """
    for which, tokens, size in (("old", old, old_size), ("new", new, new_size)):
        if len(tokens) > size:
            raise ValueError(
                f"the {which} vocabulary has {len(tokens):,} tokens, axis {axis} only {size:,}"
            )
        if len(set(tokens)) < len(tokens):
            ((twice, _),) = Counter(tokens).most_common(1)
            raise ValueError(f"the {which} vocabulary names {twice!r} twice")
    index = {token: position for position, token in enumerate(old)}
    moved = [index.get(token, -1) for token in new]
    return VocabularyRemap(axis, (*moved, *(-1 for _ in range(new_size - len(new)))))


# Larger than any vocabulary; its tokens take a few times as much in memory.
_MAX_VOCABULARY = 256 << 20


def read_vocabulary(path: str) -> tuple[str, ...]:
    """Returns the tokens of a UTF-8 file, one a line, in the order of their index.

    A file of word vectors is the vocabulary of its own rows.

    Raises:
      ValueError: when the file cannot be read, or is not UTF-8.
    """
    try:
        path = files.local_copy(path)
        with files.reading(path) as file:
            if is_word_vectors(file.read(1024)):
                return word_vectors.tokens(path)
        text = files.read_text(path, _MAX_VOCABULARY)
    except (OSError, UnicodeDecodeError, CheckpointError) as error:
        raise ValueError(f"the vocabulary {path} cannot be read: {error}") from error
    # Not splitlines(): a token may hold one of the separators that Unicode knows besides \n.
    return tuple(text.removesuffix("\n").split("\n")) if text else ()


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
