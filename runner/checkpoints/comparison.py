"""What differs between two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, TensorSpec


@dataclass(frozen=True)
class Difference:
    """A tensor that differs.

    Attributes:
      name: as the first checkpoint spells it, or the second where the first has none.
      what: in words what differs.
    """

    name: str
    what: str


def differences(one: CheckpointReader, other: CheckpointReader) -> Iterator[Difference]:
    """Yields every tensor that only one checkpoint has, or whose shape, dtype or values differ.

    A tensor of one is found in the other by its name or by an alias of either. Values are read one
    tensor of each checkpoint at a time, and not at all where the digests are the same.

    Raises:
      CheckpointError: when a checkpoint is damaged.
    """
    ours, theirs = one.spec(), other.spec()
    partners = _partners(ours, theirs)
    for name in ours.tensors:
        if name not in partners:
            yield Difference(name, "only in the first")
    for name in sorted({*theirs.tensors} - {*partners.values()}):
        yield Difference(name, "only in the second")
    comparable = []
    for name, partner in partners.items():
        changed = _metadata(ours.tensors[name], theirs.tensors[partner])
        if changed:
            yield Difference(name, changed)
        elif ours.tensors[name].dtype != "variant":  # It has no values that could be compared.
            comparable.append(name)
    if ours.digest == theirs.digest:
        return
    streams = one.read(comparable), other.read([partners[name] for name in comparable])
    for (name, value), (_, counterpart) in zip(*streams, strict=True):
        changed = _values(value, counterpart)
        if changed:
            yield Difference(name, changed)


def _partners(ours: CheckpointSpec, theirs: CheckpointSpec) -> dict[str, str]:
    """Returns tensor of the first -> the same tensor of the second."""
    other_names: dict[str, list[str]] = {}
    for alias, name in ours.aliases.items():
        other_names.setdefault(name, []).append(alias)
    partners: dict[str, str] = {}
    for name in ours.tensors:
        for candidate in (name, *other_names.get(name, ())):
            found = candidate if candidate in theirs.tensors else theirs.aliases.get(candidate)
            if found is not None and found not in partners.values():
                partners[name] = found
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
    """Says how many values differ, and how far; NaN equals NaN."""
    kind = one.dtype.name
    same = one == other
    if "float" in kind or "complex" in kind:
        same |= np.isnan(one) & np.isnan(other)
    count = int(np.asarray(same).size - np.count_nonzero(same))
    if not count:
        return ""
    text = f"{count:,} of {one.size:,} values"
    if one.dtype.kind in "OSU":
        return text
    wide = np.result_type(one.dtype, np.float64) if "complex" in kind else np.float64
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.subtract(one[~same], other[~same], dtype=wide))
    return f"{text}, by up to {float(np.max(apart)):.6g}"


@dataclass(frozen=True)
class Statistics:
    """What the values of a tensor are like.

    Attributes:
      minimum: the smallest value that is no NaN; None when there is none, as for text.
      maximum: the largest.
      mean: of the values that are no NaN, computed in float64.
      nan: how many values are NaN.
    """

    minimum: float | None
    maximum: float | None
    mean: float | None
    nan: int


def statistics(value: NDArray[Any]) -> Statistics:
    """Returns the statistics of an array of any dtype; complex numbers and text have no order."""
    kind = value.dtype.name
    if "float" in kind or "complex" in kind:
        missing = np.isnan(value)
        nan = int(np.count_nonzero(missing))
    elif value.dtype.kind in "biu" or kind.startswith(("int", "uint")):
        nan = 0
    else:
        return Statistics(None, None, None, 0)
    if nan:
        value = value[~missing]
    if "complex" in kind or not value.size:
        return Statistics(None, None, None, nan)
    mean = float(np.mean(value, dtype=np.float64))
    return Statistics(float(value.min()), float(value.max()), mean, nan)
