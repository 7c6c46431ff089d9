"""The interface of every checkpoint format: tensor specs from metadata, values on demand."""

from __future__ import annotations

import abc
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from runner.errors import CheckpointError, Problem, nearest

# Where a block of a tensor begins in each dimension, and its shape.
Block: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor in a checkpoint or a variable in a graph.

    Attributes:
      name: as the checkpoint or the graph spells it.
      shape: the dimensions; empty for a scalar.
      dtype: NumPy's name of the element type, e.g. `float32` or `bfloat16`; `string` for text.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class CheckpointSpec:
    """What is known of a checkpoint from its metadata alone.

    Attributes:
      path: what its reader opens; for TensorFlow bundles the prefix.
      step: the global step it was saved at; None when it holds none.
      tensors: tensor name -> spec.
      format: the format in words, e.g. `TensorFlow bundle`.
      digest: of the content, so that a pinned checkpoint is known again; `algorithm:hex`. For
        TensorFlow bundles and zip archives it is of the checksums that they hold of every tensor,
        for other files of all bytes, which are read for it.
      aliases: other names of some tensors -> the name in `tensors`; an object-based checkpoint
        knows a variable by its object path and by the variable's own name.
    """

    path: str
    step: int | None
    tensors: Mapping[str, TensorSpec]
    format: str = ""
    digest: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bundle:
    """How TensorFlow's `RestoreV2` reads a checkpoint.

    Attributes:
      prefix: what it is given as the prefix.
      keys: tensor name -> the name it is given; they differ for object-based checkpoints.
    """

    prefix: str
    keys: Mapping[str, str]


class CheckpointReader(abc.ABC):
    """Opens one checkpoint read-only."""

    @abc.abstractmethod
    def spec(self) -> CheckpointSpec:
        """Returns the names, shapes and dtypes of all tensors; reads no tensor but the step.

        Raises:
          CheckpointError: when the checkpoint is damaged or of another format.
        """

    @abc.abstractmethod
    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Yields (name, value) for each of the names in their order, one tensor at a time.

        A value is in memory only as long as the caller keeps it.

        Args:
          names: names in `spec().tensors`, not aliases.

        Raises:
          CheckpointError: when a name is unknown, or a tensor's bytes are damaged or missing.
        """

    def read_blocks(
        self, wanted: Sequence[tuple[str, Sequence[Block | None]]]
    ) -> Iterator[tuple[str, list[NDArray[Any]]]]:
        """Yields (name, blocks) for each of the tensors in their order.

        The blocks of a tensor are read once for all of them and share no memory. The memory of
        those of a bundle is nobody else's.

        Args:
          wanted: names in `spec().tensors`, each with the blocks wanted of it; None for the whole.

        Raises:
          CheckpointError: as `read` does.
        """
        values = self.read([name for name, _ in wanted])
        for (name, blocks), (_, value) in zip(wanted, values, strict=True):
            yield name, blocks_of(value, blocks)

    def bundle(self) -> Bundle | None:
        """Returns how TensorFlow's `RestoreV2` reads the same tensors; None when it cannot.

        Raises:
          CheckpointError: when the checkpoint is damaged.
        """
        return None


class OwnMemory(mmap.mmap):
    """Memory that is no file's, and nobody else's than the array's that is made from it."""


def blocks_of(value: NDArray[Any], blocks: Sequence[Block | None]) -> list[NDArray[Any]]:
    """Returns copies of a value's blocks; the value itself where only the whole is wanted."""
    if len(blocks) == 1 and blocks[0] is None:
        return [value]
    return [np.array(value if each is None else value[_slices(each)]) for each in blocks]


def _slices(block: Block) -> tuple[slice, ...]:
    return tuple(slice(at, at + count) for at, count in zip(*block, strict=True))


def unreadable(path: str, what: str, cause: object) -> CheckpointError:
    """Returns the error of a checkpoint that is damaged.

    Args:
      path: the checkpoint or the file of it that is damaged.
      what: what the file should have been, after `cannot be read as`; e.g. `an HDF5 file`.
      cause: the reason; of an exception the first line.
    """
    lines = str(cause).splitlines() or [type(cause).__name__]
    return CheckpointError(
        Problem(
            f"{path} cannot be read as {what}",
            lines[0],
            "name another checkpoint, or restore its files from a copy",
        )
    )


def require_names(path: str, names: Sequence[str], known: Mapping[str, object]) -> None:
    """Raises `CheckpointError` with each of the `names` that is not `known` in the checkpoint."""
    problems = [
        Problem(
            f"{path} holds no tensor {name!r}",
            f"it holds {len(known)} tensors, none of that name",
            "name one of its tensors; `python -m runner.inspect` lists them",
            nearest(name, known),
        )
        for name in names
        if name not in known
    ]
    if problems:
        raise CheckpointError(*problems)
