"""Runs and models as stores hold them, and the tags of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.system.status import Status

# Every command imports this module, and few of them compute.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RUN_DIR_TAG = "runner.run_dir"
"""Tag that holds the absolute path of the run directory."""

COMMAND_TAG = "runner.command"
"""Tag that holds the command line."""

DESCRIPTION_TAG = "mlflow.note.content"
"""Tag that MLflow shows as the run's description, in Markdown."""

UID_TAG = "runner.uid"
"""Tag that identifies a run in every store, given by the run and not by the store."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as its store remembers it; `run_dir` is None without the tag `runner.run_dir`."""

    run_id: str
    experiment: str
    status: Status
    run_dir: Path | None
    tags: Mapping[str, str]


@dataclass(frozen=True)
class Field:
    """One input or output tensor of a model; -1 in its shape stands for any size."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ExportedModel:
    """A SavedModel of a run.

    Attributes:
      folder: where it is.
      step: the global step of its weights.
      inputs: the inputs of its signature, by keyword.
      outputs: the outputs of its signature.
      example: one example of each input, with a first dimension of 1.
    """

    folder: Path
    step: int
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    example: Mapping[str, NDArray[Any]]
