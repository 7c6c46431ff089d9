"""Reads the values that variables take from checkpoints, and checks them."""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.reader import CheckpointReader
from runner.errors import CheckpointError, Problem
from runner.internals.tensorflow import is_of_tensor
from runner.planning.plan import Assignment, RestorationPlan
from runner.rules.conversions import is_float
from runner.rules.source_tensors import SourceTensor

_LOGGER = logging.getLogger(__name__)

# Fits into the processor's cache while it is copied and checked.
_CHECKED = 256 << 10
# Called with (scaffold, tensor name, value), of a tensor or of a block of it.
OnTensor: TypeAlias = Callable[[str, str, NDArray[Any]], None]


def converted_values(
    assignments: Sequence[Assignment],
    readers: Mapping[str, CheckpointReader],
    initial: Mapping[str, NDArray[Any]],
    on_tensor: OnTensor | None = None,
) -> Iterator[tuple[Assignment, NDArray[Any]]]:
    """Yields each assignment with its variable's value, one value in memory at a time.

    Args:
      assignments: assignments that take something from a checkpoint.
      readers: scaffold name -> the reader of its checkpoint.
      initial: variable name -> initial value, of the variables that keep a part of it.
      on_tensor: called with every tensor as it is in its checkpoint.

    Raises:
      CheckpointError: when a tensor is damaged, or its value cannot be converted.
    """
    needed: dict[str, list[str]] = {}
    source_tensors = [(a, a.source_tensor) for a in assignments if a.source_tensor]
    for _, source_tensor in source_tensors:
        needed.setdefault(source_tensor.source, []).extend(source_tensor.names)
    # One pass over each source, in the order in which its tensors are needed.
    streams = {
        source: _stream(source, readers[source], names, on_tensor)
        for source, names in needed.items()
    }
    for assignment, source_tensor in source_tensors:
        initial_value = initial.get(assignment.variable.name)
        stream = streams[source_tensor.source]
        yield assignment, _convert(assignment, source_tensor, stream, initial_value)


def _stream(
    source: str, reader: CheckpointReader, names: Sequence[str], on_tensor: OnTensor | None
) -> Iterator[NDArray[Any]]:
    """Yields the tensors in turn; one that is needed several times in a row is read once."""
    needed = [(name, len([*group])) for name, group in itertools.groupby(names)]
    with CheckpointError.within(f"scaffolds.{source}"):
        values = reader.read([name for name, _ in needed])
        for (name, value), (_, count) in zip(values, needed, strict=True):
            if on_tensor is not None:
                on_tensor(source, name, value)
            # A view, so that variables that take the same values do not share their memory.
            yield from [value] if count == 1 else [value.view()] * count


def _convert(
    assignment: Assignment,
    source_tensor: SourceTensor,
    stream: Iterator[NDArray[Any]],
    initial: NDArray[Any] | None,
) -> NDArray[Any]:
    tensors = [next(stream) for _ in source_tensor.names]
    names, wanted = ", ".join(source_tensor.names), assignment.variable.tensor
    try:
        value = source_tensor.convert(tensors, initial)
        dtype = "string" if value.dtype.kind in "OSU" else value.dtype.name
        if (value.shape, dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(
                f"they give a {dtype} {list(value.shape)} for a {wanted.dtype} {list(wanted.shape)}"
            )
    except ValueError as error:
        raise CheckpointError.of(
            f"scaffolds.{source_tensor.source}: {wanted.name} cannot be made from {names}",
            str(error),
            "exclude the variable, change the conversion in the scaffold, or if the checkpoint "
            "was being written, start again",
        ) from error
    # TensorFlow keeps what it is fed without a copy: it must not be a view of a file. A reader
    # returns no such view; a copy would take a sixth of the time, and the memory of a batch.
    if is_of_tensor(value):
        return np.require(value, requirements=["C", "W"])
    return np.require(value, requirements=["C", "O", "W"])


class NonFiniteTensors:
    """Collects the tensors of one restoration that hold NaN or infinite values."""

    def __init__(self) -> None:
        self._tensors: set[tuple[str, str]] = set()

    def on_tensor(self, source: str, tensor: str, value: NDArray[Any]) -> None:
        """Checks a tensor, or a block of it."""
        if value.dtype.kind == "c" or is_float(value.dtype):
            with np.errstate(over="ignore", invalid="ignore"):
                # The sum takes a third of the time of checking each element.
                if not np.isfinite(value.sum()) and not np.isfinite(value).all():
                    self._tensors.add((source, tensor))

    def report(self, plan: RestorationPlan) -> None:
        """Logs a warning for every tensor that is not finite, and forgets them.

        Raises:
          CheckpointError: with every such tensor whose scaffold has `finite: true`.
        """
        tensors, self._tensors = sorted(self._tensors), set()
        problems = []
        for source, tensor in tensors:
            key, spec = f"scaffolds.{source}", plan.sources[source]
            path = spec.path if spec else ""
            state = f"{key}: {tensor} in {path} holds NaN or infinite values"
            if source in plan.finite:
                problems.append(
                    Problem(
                        state,
                        f"{key}.finite is true",
                        "name a checkpoint from before that, exclude the variable, or set "
                        f"{key}.finite=false",
                    )
                )
            else:
                _LOGGER.warning("%s; %s.finite=true refuses them", state, key)
        if problems:
            raise CheckpointError(*problems)


def value_hash(value: NDArray[Any]) -> str:
    """Returns a hash of dtype, shape and every byte of a value; of strings, of their characters."""
    is_string = value.dtype.kind in "OSU"
    dtype = "string" if is_string else value.dtype.name
    digest = hashlib.blake2b(f"{dtype} {value.shape}".encode(), digest_size=16)
    if is_string:
        for string in value.ravel():
            data = string if isinstance(string, bytes) else str(string).encode()
            digest.update(f"{len(data)} ".encode() + data)
    elif value.size:
        # Element types of `ml_dtypes` have no buffer.
        digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def checksum(value: NDArray[Any]) -> str:
    """Returns `crc32c:<hex>` of a value's bytes; of strings, of how Python prints them.

    Every start computes it, for 98 MB of ResNet-50 in 0.03 s; `value_hash` takes 14 times as long.
    """
    if value.dtype.kind in "OSU":
        value = np.frombuffer(repr(value.tolist()).encode(), np.uint8)
    octets = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    crc = 0
    for start in range(0, octets.size, _CHECKED):
        crc = google_crc32c.extend(crc, octets[start : start + _CHECKED].tobytes())
    return f"crc32c:{crc:08x}"


def hash_problems(
    assignments: Iterable[Assignment],
    hashes: Mapping[str, str],
    replicas: Mapping[str, Sequence[NDArray[Any]]],
) -> list[Problem]:
    """Compares values that were read back with the hashes of their sources.

    Args:
      assignments: the assignments to compare.
      hashes: variable name -> `value_hash` of its source's value.
      replicas: variable name -> its value in each replica.

    Returns:
      A problem for every variable that differs.
    """
    problems = []
    for assignment in assignments:
        name = assignment.variable.name
        actual = next((h for h in map(value_hash, replicas[name]) if h != hashes[name]), None)
        if actual is not None:
            source = assignment.source_tensor
            origin = f"{'+'.join(source.names)} of {source.source}" if source else "no source"
            problems.append(
                Problem(
                    f"{name} does not hold what was restored from {origin}",
                    f"its hash is {actual}, its source's {hashes[name]}",
                    "look for what else assigns to it during the start (an init_fn, a hook, "
                    "another restore) and remove it; start again if the checkpoint was being "
                    "written; if neither, memory or disk gave wrong bytes: restore the file from a "
                    "copy",
                )
            )
    return problems
