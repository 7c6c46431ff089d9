"""The interface of every checkpoint format: tensor specs from metadata, values on demand."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass


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
    """

    path: str
    step: int | None
    tensors: Mapping[str, TensorSpec]


class CheckpointReader(abc.ABC):
    """Opens one checkpoint read-only."""

    @abc.abstractmethod
    def spec(self) -> CheckpointSpec:
        """Returns the names, shapes and dtypes of all tensors; reads no tensor but the step.

        Raises:
          CheckpointError: when the checkpoint is damaged or of another format.
        """
