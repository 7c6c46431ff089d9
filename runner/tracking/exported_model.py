"""What a store keeps of an exported model: where it is, its signature, an example of its input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Field:
    """One tensor that a model takes or gives.

    Attributes:
      name: its name in the signature.
      dtype: its NumPy type.
      shape: its dimensions; -1 where any size will do, as in the first one.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ExportedModel:
    """A SavedModel of a run.

    Attributes:
      folder: where it is.
      step: the global step of its weights.
      inputs: what its signature takes, by keyword.
      outputs: what its signature gives.
      example: one example for each input, with a first dimension of 1.
    """

    folder: Path
    step: int
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    example: Mapping[str, NDArray[Any]]
