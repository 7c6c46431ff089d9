"""Compares two checkpoints and describes one: what `python -m runner.inspect` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, TensorSpec, is_number


def differences(one: CheckpointReader, other: CheckpointReader) -> Iterator[tuple[str, str]]:
    """Yields every tensor that only one checkpoint has, or whose shape, dtype or values differ.

    With its name, as the first checkpoint spells it or else the second, comes a description of the
    difference. A tensor of one is found in the other by its name or by an alias of either. Values
    are read one tensor of each checkpoint at a time, and not at all where the digests are the same.

    Raises:
      CheckpointError: when a checkpoint is damaged.
    """
    ours, theirs = one.spec(), other.spec()
    partners = _partners(ours, theirs)
    for name in ours.tensors:
        if name not in partners:
            yield name, "only in the first"
    for name in sorted({*theirs.tensors} - {*partners.values()}):
        yield name, "only in the second"
    comparable = []
    for name, partner in partners.items():
        changed = _metadata(ours.tensors[name], theirs.tensors[partner])
        if changed:
            yield name, changed
        elif ours.tensors[name].dtype != "variant":  # A variant has no comparable values.
            comparable.append(name)
    if ours.digest == theirs.digest:
        return
    streams = one.read(comparable), other.read([partners[name] for name in comparable])
    for (name, value), (_, counterpart) in zip(*streams, strict=True):
        changed = _values(value, counterpart)
        if changed:
            yield name, changed


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
      minimum: the smallest value that is not NaN; None for strings and without any values.
      maximum: the largest.
      mean: the mean of the values that are not NaN, computed in float64.
      nan: how many values are NaN.
    """

    minimum: float | None
    maximum: float | None
    mean: float | None
    nan: int


def statistics(value: NDArray[Any]) -> Statistics:
    """Returns the statistics of an array; complex numbers and strings have no order."""
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


def listing(
    spec: CheckpointSpec, classes: Mapping[str, str], found: Mapping[str, Statistics]
) -> RenderableType:
    """Returns a table of a checkpoint's tensors below its path, format and digest.

    `classes` and `found` are by tensor name; with nothing in `found` the table has no statistics.
    """
    also = {name: alias for alias, name in spec.aliases.items()}
    columns = ["tensor", "shape", "dtype", "bytes", "class"]
    columns += ["min", "max", "mean", "NaN"] if found else []
    table = _table(*columns, *(["also called"] if also else []))
    for name, tensor in spec.tensors.items():
        # Strings have no fixed size, nor has a `variant`, the position in a run's training data.
        size = f"{tensor.bytes:,}" if is_number(tensor.dtype) else ""
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        cells = [name, shape, tensor.dtype, size, classes[name]]
        of = found.get(name)
        if of is not None:
            values = (of.minimum, of.maximum, of.mean)
            cells += ["" if value is None else f"{value:.6g}" for value in values]
            cells.append(f"{of.nan:,}")
        elif found:
            cells += [""] * 4
        if also:
            cells.append(also.get(name, ""))
        style = "red" if of is not None and of.nan else ""
        table.add_row(*(Text(cell, style=style) for cell in cells))
    total = sum(tensor.bytes for tensor in spec.tensors.values())
    step = "" if spec.step is None else f", step {spec.step}"
    summary = f"{spec.format}{step}: {len(spec.tensors)} tensors, {total:,} bytes"
    return Group(Text(spec.path), Text(summary), Text(spec.digest), table)


def difference_listing(
    one: CheckpointSpec, other: CheckpointSpec, found: Sequence[tuple[str, str]]
) -> RenderableType:
    """Returns a table of the differences between two checkpoints."""
    paths = Text(f"first: {one.path}"), Text(f"second: {other.path}")
    if not found:
        return Group(*paths, Text("no difference"))
    table = _table("tensor", "differs")
    for name, what in found:
        table.add_row(Text(name), Text(what))
    count = f"{len(found)} tensors differ" if len(found) > 1 else "1 tensor differs"
    return Group(*paths, table, Text(count))


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        numeric = name in ("bytes", "min", "max", "mean", "NaN")
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    return table
