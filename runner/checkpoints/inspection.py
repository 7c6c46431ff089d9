"""Inspects checkpoints as mappings of tensors, compares them, and computes statistics."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from runner.checkpoints.locate import LATEST, checkpoint_paths
from runner.checkpoints.open import open_reader
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, TensorSpec, is_read
from runner.console import Listing, as_text, plural
from runner.errors import nearest

# So many elements are looked at together.
_PIECE = 4 << 20


class Checkpoint(Mapping[str, NDArray[Any]]):
    """A checkpoint of any format: tensor name -> value, read from the file on access.

    A value is an array of the shape and dtype in `tensors`; bfloat16 and its like have the dtypes
    of `ml_dtypes`. It may be a read-only view of the file. Aliases, such as Keras's paths in a
    `.keras` file, are accepted as well.

    Args:
      reader: reads the checkpoint.
    """

    def __init__(self, reader: CheckpointReader) -> None:
        self.reader = reader

    @cached_property
    def spec(self) -> CheckpointSpec:
        """Its path, format, step, digest, aliases and tensors, from metadata."""
        return self.reader.spec()

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Tensor name -> shape and dtype; no value is read for it."""
        return self.spec.tensors

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Reads a tensor by its name or an alias; raises KeyError with the nearest names."""
        tensor = self.spec.find(name)
        if tensor is None:
            near = nearest(name, [*self.tensors, *self.spec.other_names])
            raise KeyError(f"{name!r} is not in {self.spec.path}; nearest: {', '.join(near)}")
        ((_, value),) = self.reader.read([tensor.name])
        return value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.spec.find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"<{self.spec.format} {self.spec.path}, {len(self)} tensors>"


def open_checkpoint(path: str | bytes | os.PathLike[str], which: str = LATEST) -> Checkpoint:
    """Opens a checkpoint of any format; see `Checkpoint`.

    Args:
      path: a file, a bundle's prefix, a SavedModel, a directory of checkpoints, or a run directory,
        on any file system that fsspec opens.
      which: `latest`, `best` by the objective that a run recorded, or a step; for directories.

    Raises:
      CheckpointError: when there is no checkpoint, or it cannot be read.
    """
    (resolved,) = checkpoint_paths(os.fsdecode(path), str(which))
    return Checkpoint(open_reader(resolved))


@dataclass(frozen=True)
class Differences:
    """The differences of two checkpoints; false without any, and prints as a table.

    Attributes:
      one: the first checkpoint.
      other: the second checkpoint.
      tensors: name of a tensor in the first, or else the second -> a description of the difference.
    """

    one: CheckpointSpec
    other: CheckpointSpec
    tensors: Mapping[str, str]

    def __len__(self) -> int:
        return len(self.tensors)

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def __rich__(self) -> RenderableType:
        """Returns the differences as a table below their number."""
        count = f"{plural(len(self), 'tensor')} differ{'s' * (len(self) == 1)}"
        lines = (count if self else "no difference", f"first: {self.one.path}")
        rows = list(self.tensors.items())
        return Group(
            *map(Text, (*lines, f"second: {self.other.path}")),
            *([Listing(("tensor", "differs"), rows)] if rows else []),
        )


def diff(
    one: str | bytes | os.PathLike[str] | Checkpoint,
    other: str | bytes | os.PathLike[str] | Checkpoint,
) -> Differences:
    """Compares two checkpoints, of any two formats, value by value.

    Tensors are compared if a name or an alias of one is a name or an alias of the other. Each
    checkpoint is read one tensor at a time.

    Raises:
      CheckpointError: when one of them cannot be read.
    """
    first, second = (
        checkpoint if isinstance(checkpoint, Checkpoint) else open_checkpoint(checkpoint)
        for checkpoint in (one, other)
    )
    return Differences(first.spec, second.spec, dict(_differences(first, second)))


def _differences(one: Checkpoint, other: Checkpoint) -> Iterator[tuple[str, str]]:
    """Yields (name, difference) of the tensors that differ or are in one checkpoint only."""
    ours, theirs = one.tensors, other.tensors
    partners = _partners(one.spec, other.spec)
    for name in ours:
        if name not in partners:
            yield name, "only in the first"
    for name in sorted({*theirs} - {*partners.values()}):
        yield name, "only in the second"
    comparable = []
    for name, partner in partners.items():
        changed = _metadata(ours[name], theirs[partner])
        if changed:
            yield name, changed
        elif not is_read(ours[name].dtype):
            yield name, f"not compared: {ours[name].dtype}"
        elif ours[name].dtype != "variant":  # A variant has no comparable values.
            comparable.append(name)
    values = one.reader.read(comparable)
    counterparts = other.reader.read([partners[name] for name in comparable])
    for (name, value), (_, counterpart) in zip(values, counterparts, strict=True):
        changed = _values(value, counterpart)
        if changed:
            yield name, changed


def _partners(ours: CheckpointSpec, theirs: CheckpointSpec) -> dict[str, str]:
    """Returns tensor of the first -> the same tensor of the second."""
    aliases: dict[str, list[str]] = {}
    for alias, name in ours.other_names.items():
        aliases.setdefault(name, []).append(alias)
    partners: dict[str, str] = {}
    for name in ours.tensors:
        for candidate in (name, *aliases.get(name, ())):
            partner = theirs.find(candidate)
            if partner is not None and partner.name not in partners.values():
                partners[name] = partner.name
                break
    return partners


def _metadata(one: TensorSpec, other: TensorSpec) -> str:
    changed = []
    if one.shape != other.shape:
        changed.append(f"shape {list(one.shape)} -> {list(other.shape)}")
    if one.dtype != other.dtype:
        changed.append(f"dtype {one.dtype} -> {other.dtype}")
    return ", ".join(changed)


def _values(one: NDArray[np.generic], other: NDArray[np.generic]) -> str:
    """Describes how many values differ, and how far; empty when none do. NaN equals NaN."""
    kind = one.dtype.name
    same = one == other
    if "float" in kind or "complex" in kind:
        same |= np.isnan(one) & np.isnan(other)
    count = int(np.asarray(same).size - np.count_nonzero(same))
    if not count:
        return ""
    described = f"{count:,} of {one.size:,} values"
    if one.dtype.kind in "OSU":
        return described
    wide = np.result_type(one.dtype, np.float64) if "complex" in kind else np.float64
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.subtract(one[~same], other[~same], dtype=wide))
    return f"{described}, by up to {float(np.max(apart)):.6g}"


@dataclass(frozen=True)
class Statistics:
    """Statistics of a tensor's values.

    Attributes:
      minimum: the smallest value except NaN; None for strings and without any values.
      maximum: the largest value except NaN, or None.
      mean: the mean of the values except NaN, computed in float64, or None.
      nan: the number of NaN values.
    """

    minimum: float | None
    maximum: float | None
    mean: float | None
    nan: int


def statistics(value: NDArray[Any]) -> Statistics:
    """Returns the statistics of an array; complex numbers and strings have no order."""
    kind = value.dtype.name
    is_float = "float" in kind or "complex" in kind
    if not is_float and not (value.dtype.kind in "biu" or kind.startswith(("int", "uint"))):
        return Statistics(None, None, None, 0)
    # In pieces, because the array may be a memory map of a file larger than the memory.
    flat = value.reshape(-1)
    minima, maxima, total, count = [], [], 0.0, 0
    for start in range(0, flat.size, _PIECE):
        piece = flat[start : start + _PIECE]
        if is_float:
            piece = piece[~np.isnan(piece)]
        count += piece.size
        if piece.size and "complex" not in kind:
            minima.append(float(piece.min()))
            maxima.append(float(piece.max()))
            total += float(np.sum(piece, dtype=np.float64))
    nan = flat.size - count
    if not minima:
        return Statistics(None, None, None, nan)
    return Statistics(min(minima), max(maxima), total / count, nan)
