"""`Tracker` records one run; the types of runs and models in stores."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config.masking import Mask
from runner.system.status import Status
from runner.tracking.journal import (
    Artifact,
    Dataset,
    End,
    Journal,
    Metrics,
    Parameters,
    Tags,
    Text,
    read_lines,
    segments,
)
from runner.tracking.tracking_directory import TrackingDirectory

# Every command imports this module, and few of them compute.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from runner.tracking.follower_process import FollowerProcess
    from runner.tracking.run_store import RunStore

logger = logging.getLogger(__name__)

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


def now() -> int:
    """Returns the present time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Tracker:
    """Appends the records of one run to its journal, from which they are delivered.

    No method waits for a store or raises because of it: records that cannot be delivered are
    reported through `logging`, by `close` at the latest. Secrets are masked.

    Args:
      store: the run's stores.
      directory: the folder of the journal, claimed.
      follower: follows the journal; None where no store is configured.
      adds: whether the run has ended before and is only added to, so that its end time stays.
    """

    def __init__(
        self,
        store: RunStore,
        directory: TrackingDirectory,
        follower: FollowerProcess | None,
        *,
        adds: bool = False,
    ) -> None:
        self._store = store
        self._directory = directory
        self._journal = Journal(directory.journal)
        self._follower = follower
        self._mask = store.mask
        self._adds = adds
        self._closed = False

    def log_parameters(self, parameters: Mapping[str, object]) -> None:
        """Records values that are fixed for the run, each as a string."""
        masked = {name: str(self._mask.value(name, value)) for name, value in parameters.items()}
        self._journal.append(Parameters(masked))

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Records one value of each metric at the global step `step`, with the present time.

        To a run that has ended, only new values are added.
        """
        if self._adds:
            known = self._recorded(step)
            metrics = {name: value for name, value in metrics.items() if known.get(name) != value}
        if metrics:
            self._journal.append(Metrics(metrics, step, now()))

    def _recorded(self, step: int) -> dict[str, float]:
        """Returns the last metrics in the journal of a step, such as a killed evaluation's."""
        return {
            name: value
            for segment in segments(self._directory.journal)
            for record, _ in read_lines(segment.path)
            if isinstance(record, Metrics) and record.step == step
            for name, value in record.values.items()
        }

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Sets tags, replacing those that exist."""
        self._journal.append(Tags(masked_tags(tags, self._mask)))

    def log_artifact(self, path: Path, folder: str = "", step: int | None = None) -> None:
        """Stores a copy of a file or directory, under its name, with the run.

        Args:
          path: the file or directory. It is copied after this call, when the store is available,
            so it has to stay; in the run directory, which may be moved.
          folder: the folder among the artifacts, with `/` between the parts; the default is their
            root.
          step: the global step at which it was recorded; None for the run as a whole.
        """
        path, root = path.absolute(), self._directory.run_directory.absolute()
        inside = path.is_relative_to(root)
        place = path.relative_to(root) if inside else path
        self._journal.append(Artifact(place, folder, step, None if step is None else now()))

    def log_text(self, text: str, file: str) -> None:
        """Stores `text` as the artifact named `file`, with `/` between the parts of the name."""
        self._journal.append(Text(self._mask.text(text), file))

    def log_dataset(self, dataset: Dataset) -> None:
        """Records a data set that the run reads."""
        self._journal.append(replace(dataset, source=self._mask.text(dataset.source)))

    def rewind(self, step: int) -> None:
        """Notes that the run resumes from `step`, so that metrics of later steps come again.

        Each step ends up in the store once, whether it came before this call or after it.
        """
        self._journal.rewind(step)

    def close(self, status: Status, remaining: Callable[[], float | None] = lambda: None) -> None:
        """Delivers the rest, within a bounded time, and records how the run ended.

        A second call does nothing.

        Args:
          status: how the run ended; `Status.RUNNING` leaves it open, to be resumed.
          remaining: returns how many seconds a signal leaves for the call; None without a signal.
        """
        if self._closed:
            return
        self._closed = True
        end_time = None if self._adds else now()
        self._journal.append(End(status, self._journal.lost, end_time))
        self._journal.close()
        self._directory.release()
        if self._follower is None:
            return
        run_directory, timeout = self._directory.run_directory, self._store.config.close_seconds
        for path in self._follower.finish(run_directory, timeout, remaining=remaining):
            undelivered = TrackingDirectory(path)
            state = "continues for a time and logs" if self._follower.is_alive else "has logged"
            logger.warning(
                "Not all that the run recorded is delivered yet. It is kept in %s; a process"
                " %s to %s. When the store is back: python -m runner.sync %s",
                undelivered.journal,
                state,
                undelivered.log,
                shlex.quote(str(path)),
            )

    def location(self) -> str:
        """Returns where the run is recorded, for display: its page or id, and event files."""
        return self._store.location(self._directory.run_directory)


def masked_tags(tags: Mapping[str, str], mask: Mask) -> dict[str, str]:
    """Returns tags with their secrets masked."""
    return {
        name: mask.command(value) if name == COMMAND_TAG else mask.text(str(value))
        for name, value in tags.items()
    }
