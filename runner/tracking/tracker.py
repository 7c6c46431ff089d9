"""The interface through which a run records what it did and finds what others recorded."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.system.status import Status

RUN_DIR_TAG = "runner.run_dir"
"""Tag that holds the absolute path of a run's own directory."""

UID_TAG = "runner.uid"
"""Tag that identifies a run in every store, given by the run and not by the store."""

# As MLflow has them: RUNNING, FINISHED, FAILED and KILLED.
RunStatus = Status


@dataclass(frozen=True)
class TrackedRun:
    """A run as its store remembers it.

    Attributes:
      run_id: the store's name of the run.
      experiment: name of the experiment that the run belongs to.
      name: the run's own name, for people.
      status: how it ended.
      run_dir: the run's directory, from the tag `runner.run_dir`; None when it has no such tag.
      tags: every tag of the run.
      start_time: milliseconds since the epoch.
      end_time: milliseconds since the epoch; None when the store knows none.
    """

    run_id: str
    experiment: str
    name: str
    status: RunStatus
    run_dir: Path | None
    tags: Mapping[str, str]
    start_time: int
    end_time: int | None = None


class Tracker(abc.ABC):
    """Records one run.

    No method waits for a store and none raises because of it: what cannot be recorded is
    reported through `logging`, at the latest by `close`.
    """

    @abc.abstractmethod
    def log_parameters(self, parameters: Mapping[str, object]) -> None:
        """Records values that are fixed for the run, each as text."""

    @abc.abstractmethod
    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Records one value of each metric at the global step `step`, with the present time."""

    @abc.abstractmethod
    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Sets tags, replacing those that exist."""

    @abc.abstractmethod
    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Keeps a copy of a file or directory, under its own name, with the run.

        Args:
          path: what to keep. It is copied later than this call, when the store can take it, so
            it stays in the run directory.
          folder: where to put it among the artifacts, with `/` between the parts; the default
            is their root.
        """

    @abc.abstractmethod
    def log_text(self, text: str, file: str) -> None:
        """Keeps `text` as the artifact named `file`, with `/` between the parts of the name."""

    @abc.abstractmethod
    def log_dataset(
        self, name: str, digest: str, context: str, source: str, sizes: Mapping[str, int]
    ) -> None:
        """Records a data set that the run reads.

        Args:
          name: its name.
          digest: changes when the data set does; 36 characters are kept.
          context: what the run does with it, such as `train`.
          source: where it comes from, in words.
          sizes: what is known of its size, such as `{"examples": 1200}`.
        """

    @abc.abstractmethod
    def rewind(self, step: int) -> None:
        """Says that the run goes on from `step`: metrics of later steps are recorded again.

        Each step is then recorded once, whether it was before this call or is after it.
        """

    @abc.abstractmethod
    def close(self, status: RunStatus, seconds: float | None = None) -> None:
        """Delivers what is left, within a bounded time, and records how the run ended.

        A second call does nothing.

        Args:
          status: how it ended; `RunStatus.RUNNING` leaves the run open, to be resumed.
          seconds: how long that may take at most; None has the configured time.
        """

    @abc.abstractmethod
    def location(self) -> str:
        """Returns where the run is recorded, in words to show; passwords masked."""


class RunStore(abc.ABC):
    """Where runs are recorded and found again."""

    @abc.abstractmethod
    def connect(self) -> None:
        """Finds mistakes that can be seen at once; a store that is only away is none.

        Raises:
          TrackingError: the store can never be used as it stands.
        """

    @abc.abstractmethod
    def open(
        self,
        directory: Path,
        experiment: str,
        run_name: str,
        tags: Mapping[str, str],
        parent: str | None = None,
        ended: RunStatus | None = None,
    ) -> Tracker:
        """Opens the run of a run directory: a new one, or the one recorded from there before.

        Args:
          directory: the run directory.
          experiment: name of the experiment.
          run_name: name of the run, for people.
          tags: the first tags of the run; a run that exists keeps its own.
          parent: directory of the run that this one is a part of, such as a sweep.
          ended: how the run has ended, where something is only added to it; its status stays so.

        Raises:
          TrackingError: another process records from this directory.
        """

    @abc.abstractmethod
    def run_id(self, directory: Path) -> str | None:
        """Returns the store's name of the run of a run directory; None while there is none."""

    @abc.abstractmethod
    def finished(self, experiment: str, tags: Mapping[str, str]) -> list[TrackedRun]:
        """Returns the FINISHED runs of `experiment` that carry all of `tags`, newest first.

        Raises:
          TrackingError: the store cannot be used.
        """

    @abc.abstractmethod
    def recorded(self, directory: Path) -> bool:
        """Whether the run of a run directory is recorded, and can be recorded further."""

    @property
    @abc.abstractmethod
    def store(self) -> str:
        """The store's address, by which equal URIs of two stores are told apart."""

    @abc.abstractmethod
    def pin(self, uri: str) -> str:
        """Returns what an artifact's URI means now: a model's alias becomes its version.

        Args:
          uri: `runs:/...`, `models:/...` or `mlflow-artifacts:...`.

        Raises:
          TrackingError: the store cannot be used, or holds no such model, version or alias.
        """

    @abc.abstractmethod
    def download(self, uri: str, folder: str) -> str:
        """Copies the artifact at a pinned URI into a folder and returns the path of the copy.

        Raises:
          TrackingError: the store cannot be used, or there is no such artifact.
        """

    @abc.abstractmethod
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
          register: the name under which it is registered; None registers nothing.
          alias: names the registered version from now on; None names none.

        Returns:
          A URI by which the store's own tools load it; None when the store keeps no models.

        Raises:
          TrackingError: the store cannot be used, does not have the run, or does not take it.
        """

    @abc.abstractmethod
    def settle(self, directory: Path) -> None:
        """Has the rest of a run delivered whose process was killed, and its status.

        Neither waits for the store nor raises because of it.

        Args:
          directory: the run directory.
        """

    @abc.abstractmethod
    def open_command(self) -> str:
        """Returns the shell command that shows the store's runs, quoted; passwords masked."""


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
