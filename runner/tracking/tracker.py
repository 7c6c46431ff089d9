"""What records runs and finds them again. The classes here, tracking turned off, only log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import Problem, TrackingError
from runner.system.status import Status
from runner.tracking.journal import Dataset

# Every command imports this module, and few of them compute.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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


class Tracker:
    """Records one run; this one, tracking turned off, writes each call to the log as one line.

    No method waits for a store or raises because of it: what cannot be recorded is reported
    through `logging`, by `close` at the latest.

    Args:
      name: display name of the run.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = False

    def log_parameters(self, parameters: Mapping[str, object]) -> None:
        """Records values that are fixed for the run, each as a string."""
        logger.info("parameters: %s", _listed(parameters))

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Records one value of each metric at the global step `step`, with the present time."""
        logger.info("step %d: %s", step, _listed(metrics))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Sets tags, replacing those that exist."""
        logger.info("tags: %s", _listed(tags))

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Keeps a copy of a file or directory, under its own name, with the run.

        Args:
          path: what to keep. It is copied later than this call, when the store can take it, so
            it has to stay in the run directory.
          folder: where to put it among the artifacts, with `/` between the parts; the default
            is their root.
        """
        logger.info("artifact: %s", path)

    def log_text(self, text: str, file: str) -> None:
        """Keeps `text` as the artifact named `file`, with `/` between the parts of the name."""
        logger.info("%s:\n%s", file, text)

    def log_dataset(self, dataset: Dataset) -> None:
        """Records a data set that the run reads."""
        sizes = _listed(dataset.sizes)
        what = dataset.context, dataset.name, dataset.digest
        logger.info("%s data: %s, digest %s, %s", *what, sizes)

    def rewind(self, step: int) -> None:
        """Notes that the run resumes from `step`: metrics of later steps are recorded again.

        Each step is then recorded once, whether before this call or after it.
        """
        logger.info("run %s: resumes from step %d", self._name, step)

    def close(self, status: Status, seconds: float | None = None) -> None:
        """Delivers what is left, within a bounded time, and records how the run ended.

        A second call does nothing.

        Args:
          status: how it ended; `Status.RUNNING` leaves the run open, to be resumed.
          seconds: how long that may take at most; by default the configured time.
        """
        if not self._closed:
            logger.info("run %s: %s", self._name, status)
        self._closed = True

    def location(self) -> str:
        """Returns where the run is recorded, for display; passwords masked."""
        return "only in the log: tracking is off"


class RunStore:
    """Where runs are recorded and found again; this one, tracking turned off, keeps nothing."""

    def open(
        self,
        directory: Path,
        experiment: str,
        run_name: str,
        tags: Mapping[str, str],
        parent: str | None = None,
        ended: Status | None = None,
    ) -> Tracker:
        """Opens the run of a run directory: a new one, or the one recorded from there before.

        Args:
          directory: the run directory.
          experiment: name of the experiment.
          run_name: display name of the run.
          tags: the first tags of a new run; an existing run keeps its own.
          parent: directory of the parent run, such as a sweep.
          ended: the final status of a run that has ended and is only added to; it stays so.

        Raises:
          TrackingError: another process records from this directory.
        """
        logger.info("run %s of %s", run_name, experiment)
        tracker = Tracker(run_name)
        tracker.set_tags(tags)
        return tracker

    def run_id(self, directory: Path) -> str | None:
        """Returns the store's id of the run of a run directory; None while there is none."""
        return None

    def finished(self, experiment: str, tags: Mapping[str, str]) -> list[TrackedRun]:
        """Returns the FINISHED runs of `experiment` that have all of `tags`, newest first.

        None of the tags' values may have a quote in it.

        Raises:
          TrackingError: the store cannot be used.
        """
        return []

    def recorded(self, directory: Path) -> bool:
        """Whether the run of a run directory is recorded, and can be recorded further."""
        return False

    @property
    def store(self) -> str:
        """The store's address, which distinguishes equal URIs of two stores; passwords masked."""
        return ""

    def pin(self, uri: str) -> str:
        """Returns what an artifact's URI means now: a model's alias becomes its version.

        Args:
          uri: `runs:/...`, `models:/...` or `mlflow-artifacts:...`.

        Raises:
          TrackingError: the store cannot be used, or has no such model, version or alias.
        """
        raise _no_artifacts(uri)

    def download(self, uri: str, folder: str) -> str:
        """Copies the artifact at a pinned URI into a folder and returns the path of the copy.

        Raises:
          TrackingError: the store cannot be used, or there is no such artifact.
        """
        raise _no_artifacts(uri)

    def keep_model(
        self,
        directory: Path,
        model: ExportedModel,
        register: str | None = None,
        alias: str | None = None,
    ) -> str | None:
        """Keeps an exported model with the run of a run directory, once, and registers it.

        Args:
          directory: the run directory.
          model: the model.
          register: the name under which it is registered, if it is to be.
          alias: names the registered version from now on.

        Returns:
          A URI by which the store's own tools load it; None when the store keeps no models.

        Raises:
          TrackingError: the store cannot be used, does not have the run, or refuses the model.
        """
        return None

    def deliver_rest(self, directory: Path) -> None:
        """Has the rest of a killed process's run delivered, and its status.

        Neither waits for the store nor raises because of it.
        """

    def page(self, directory: Path) -> str:
        """Returns the address of the page of a run directory's run; empty where there is none."""
        return ""

    def open_command(self) -> str:
        """Returns the shell command that shows the store's runs, quoted; passwords masked."""
        return ""


def _no_artifacts(uri: str) -> TrackingError:
    """Returns the error for an artifact's URI when no store is configured."""
    return TrackingError(
        Problem(
            f"{uri} is in MLflow, and tracking is off",
            "tracking.uri is null, so there is no store to ask for it",
            "set tracking.uri to the store that has it, or name a path",
        )
    )


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name}={f'{value:.6g}' if isinstance(value, float) else value}"
        for name, value in values.items()
    )
