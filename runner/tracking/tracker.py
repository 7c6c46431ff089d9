"""The interface that records one run, and the types of runs and models in stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.system.status import Status
from runner.tracking.journal import Dataset

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


class Tracker:
    """The interface that records one run; its methods do nothing.

    No method waits for a store or raises because of it: records that cannot be delivered are
    reported through `logging`, by `close` at the latest.
    """

    def log_parameters(self, parameters: Mapping[str, object]) -> None:
        """Records values that are fixed for the run, each as a string."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Records one value of each metric at the global step `step`, with the present time."""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Sets tags, replacing those that exist."""

    def log_artifact(self, path: Path, folder: str = "", step: int | None = None) -> None:
        """Stores a copy of a file or directory, under its name, with the run.

        Args:
          path: the file or directory. It is copied after this call, when the store is available,
            so it has to stay in the run directory.
          folder: the folder among the artifacts, with `/` between the parts; the default is their
            root.
          step: the global step at which it was recorded; None for the run as a whole.
        """

    def log_text(self, text: str, file: str) -> None:
        """Stores `text` as the artifact named `file`, with `/` between the parts of the name."""

    def log_dataset(self, dataset: Dataset) -> None:
        """Records a data set that the run reads."""

    def rewind(self, step: int) -> None:
        """Notes that the run resumes from `step`, so that metrics of later steps come again.

        Each step ends up in the store once, whether it came before this call or after it.
        """

    def close(self, status: Status, remaining: Callable[[], float | None] = lambda: None) -> None:
        """Delivers the rest, within a bounded time, and records how the run ended.

        A second call does nothing.

        Args:
          status: how the run ended; `Status.RUNNING` leaves it open, to be resumed.
          remaining: returns how many seconds a signal leaves for the call; None without a signal.
        """

    def location(self) -> str:
        """Returns the place where the run is recorded, for display, with passwords masked."""
        return ""
