"""The interface of every checkpoint format: tensor specs from metadata, values on demand."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TensorSpec:
    """A tensor in a checkpoint or a variable in a graph.

    Attributes:
      name: as the checkpoint or the graph spells it.
      shape: the dimensions; empty for a scalar.
      dtype: NumPy's name of the element type, e.g. `float32`.
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
      digest: of the content, so that a pinned checkpoint is known again; `algorithm:hex`.
      aliases: other names of some tensors -> the name in `tensors`; an object-based checkpoint
        knows a variable by its object path and by the variable's own name.
    """

    path: str
    step: int | None
    tensors: Mapping[str, TensorSpec]
    format: str = ""
    digest: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)


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
        """Yields (name, value) for each of the names, in any order, one tensor in memory at a time.

        Args:
          names: names in `spec().tensors`.

        Raises:
          CheckpointError: when a tensor's bytes are damaged or missing.
        """
