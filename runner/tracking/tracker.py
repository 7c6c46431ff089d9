"""The interface through which a run records what it did and finds what others recorded."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

RUN_DIR_TAG = "runner.run_dir"
"""Tag that holds the absolute path of a run's own directory."""

PARENT_RUN = "RUNNER_PARENT_RUN"
"""Environment variable that holds the id of the run that the trials of a sweep are parts of."""


class RunStatus(str, Enum):
    """How a run ended, or that it has not."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


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

    No method waits for the store and none raises because of it: what cannot be recorded is
    reported through `logging`, at the latest by `close`.
    """

    @property
    @abc.abstractmethod
    def run_id(self) -> str:
        """The store's name of the run, under which `RunStore.resume` finds it again."""

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
          path: what to keep. It may be copied later than this call, at the latest in `close`,
            so it stays in the run directory until then.
          folder: where to put it among the artifacts, with `/` between the parts; the default
            is their root.
        """

    @abc.abstractmethod
    def log_text(self, text: str, file: str) -> None:
        """Keeps `text` as the artifact named `file`, with `/` between the parts of the name."""

    @abc.abstractmethod
    def close(self, status: RunStatus) -> None:
        """Delivers what is left, within a bounded time, and records how the run ended.

        `RunStatus.RUNNING` leaves the run open, to be resumed. A second call does nothing.
        """


class RunStore(abc.ABC):
    """Where runs are recorded and found again."""

    @abc.abstractmethod
    def connect(self) -> None:
        """Reaches the store, creating it where it is local; the other methods do so if needed.

        Raises:
          TrackingError: the store cannot be reached or used.
        """

    @abc.abstractmethod
    def start(
        self,
        experiment: str,
        run_name: str,
        tags: Mapping[str, str],
        parent: str | None = None,
    ) -> Tracker:
        """Opens a new run, creating its experiment where there is none.

        Args:
          experiment: name of the experiment.
          run_name: name of the run, for people.
          tags: the first tags of the run.
          parent: id of the run that this one is a part of, such as a sweep.

        Raises:
          TrackingError: the store cannot be used, or the experiment has been deleted in it.
        """

    @abc.abstractmethod
    def resume(self, run_id: str) -> Tracker:
        """Opens an existing run again and marks it RUNNING.

        Raises:
          TrackingError: the store cannot be used, or holds no such run, or only a deleted one.
        """

    @abc.abstractmethod
    def finished(self, experiment: str, tags: Mapping[str, str]) -> list[TrackedRun]:
        """Returns the FINISHED runs of `experiment` that carry all of `tags`, newest first.

        Raises:
          TrackingError: the store cannot be used.
        """

    @abc.abstractmethod
    def mark(self, run_id: str, status: RunStatus) -> None:
        """Sets the status of a run that was found dead; one that has ended keeps its status.

        Raises:
          TrackingError: the store cannot be used, or holds no such run.
        """

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
    def location(self, run_id: str | None = None) -> str:
        """Returns where the store, or one run in it, is, in words to show; passwords masked."""

    @abc.abstractmethod
    def open_command(self) -> str:
        """Returns the shell command that shows the store's runs, quoted; passwords masked."""
