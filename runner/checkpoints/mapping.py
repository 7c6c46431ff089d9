"""Checkpoints as mappings of tensors, for programs: `runner.open_checkpoint` and `diff`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from runner.checkpoints.comparison import difference_listing, differences
from runner.checkpoints.locate import LATEST, resolve
from runner.checkpoints.open import open_checkpoint as opened
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, TensorSpec
from runner.console import as_text
from runner.errors import nearest


class Checkpoint(Mapping[str, NDArray[Any]]):
    """A checkpoint of any format: tensor name -> value, read from the file when it is asked for.

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
        own = name if name in self.tensors else self.spec.aliases.get(name)
        if own is None:
            near = nearest(name, [*self.tensors, *self.spec.aliases])
            raise KeyError(f"{name!r} is not in {self.spec.path}; nearest: {', '.join(near)}")
        ((_, value),) = self.reader.read([own])
        return value

    def __contains__(self, name: object) -> bool:
        return name in self.tensors or name in self.spec.aliases

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"<{self.spec.format} {self.spec.path}, {len(self)} tensors>"


def open_checkpoint(path: str | os.PathLike[str], which: str = LATEST) -> Checkpoint:
    """Opens a checkpoint of any format; see `Checkpoint`.

    Args:
      path: a file, a bundle's prefix, a SavedModel, a directory of checkpoints or of a run; also of
        a file system that `tf.io.gfile` opens.
      which: in a directory `latest`, `best` by the objective that a run recorded, or a step.

    Raises:
      CheckpointError: when there is none, or it cannot be read.
    """
    (found,) = resolve(os.fspath(path), str(which))
    return Checkpoint(opened(found))


@dataclass(frozen=True)
class Differences:
    """How two checkpoints differ; false when they do not, and prints as a table.

    Attributes:
      one: the first.
      other: the second.
      tensors: name, as the first spells it or else the second -> what differs, in words.
    """

    one: CheckpointSpec
    other: CheckpointSpec
    tensors: Mapping[str, str]

    def __len__(self) -> int:
        return len(self.tensors)

    def __str__(self) -> str:
        return as_text(difference_listing(self.one, self.other, [*self.tensors.items()]))


def diff(
    one: str | os.PathLike[str] | Checkpoint, other: str | os.PathLike[str] | Checkpoint
) -> Differences:
    """Compares two checkpoints, of any two formats, value by value.

    Raises:
      CheckpointError: when one of them cannot be read.
    """
    first, second = (
        each if isinstance(each, Checkpoint) else open_checkpoint(each) for each in (one, other)
    )
    found = dict(differences(first.reader, second.reader))
    return Differences(first.spec, second.spec, found)
