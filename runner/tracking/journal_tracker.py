"""Records a run in a journal on disk, from which a process of its own delivers it to stores."""

from __future__ import annotations

import logging
import math
import shlex
import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import Timeout

from runner.config.masking import Mask
from runner.config.schema import TrackingConfig
from runner.errors import Problem, TrackingError
from runner.tracking.address import Address, resolve
from runner.tracking.follower_process import FollowerProcess, living_follower
from runner.tracking.journal import Journal
from runner.tracking.no_tracker import no_artifacts
from runner.tracking.records import Artifact, Dataset, End, Metrics, Parameters, Tags, Text
from runner.tracking.source_control import COMMAND_TAG
from runner.tracking.tracker import ExportedModel, RunStatus, RunStore, TrackedRun, Tracker
from runner.tracking.tracking_directory import Opening, TrackingDirectory

if TYPE_CHECKING:
    from runner.tracking.mlflow_tracker import MlflowStore


logger = logging.getLogger(__name__)

TENSORBOARD = "tensorboard:"
"""The URI of event files in the run directory."""


def present() -> int:
    """Returns the present time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def mlflow_uri(config: TrackingConfig) -> str | None:
    """Returns MLflow's tracking URI, or None when nothing is recorded there."""
    return None if config.uri is None or config.uri.lower() == "none" else config.uri


class JournalTracker(Tracker):
    """Appends what one run records to its journal.

    Args:
      directory: the journal's place, claimed.
      journal: the journal.
      follower: follows it.
      mask: knows the secrets.
      store: where the run is recorded.
      close_seconds: how long `close` waits until everything is delivered.
      adds: whether the run had ended before, so that its end stays what it was.
      clock: gives the present time, in milliseconds since the epoch.
    """

    def __init__(
        self,
        directory: TrackingDirectory,
        journal: Journal,
        follower: FollowerProcess,
        mask: Mask,
        store: JournalStore,
        close_seconds: float,
        *,
        adds: bool = False,
        clock: Callable[[], int] = present,
    ) -> None:
        self._directory = directory
        self._journal = journal
        self._follower = follower
        self._mask = mask
        self._store = store
        self._close_seconds = close_seconds
        self._adds = adds
        self._clock = clock
        self._closed = False

    def log_parameters(self, parameters: Mapping[str, object]) -> None:
        """Appends parameters, secrets masked."""
        masked = {name: self._mask.value(name, value) for name, value in parameters.items()}
        self._journal.append(Parameters(masked))

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Appends metrics with the present time."""
        self._journal.append(Metrics(metrics, step, self._clock()))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Appends tags, secrets masked."""
        self._journal.append(Tags(_masked(tags, self._mask)))

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Appends the path; one in the run directory stays valid when that is moved."""
        path, root = path.absolute(), self._directory.run_directory.absolute()
        inside = path.is_relative_to(root)
        self._journal.append(Artifact(path.relative_to(root) if inside else path, folder))

    def log_text(self, text: str, file: str) -> None:
        """Appends text, secrets masked."""
        self._journal.append(Text(self._mask.text(text), file))

    def log_dataset(
        self, name: str, digest: str, context: str, source: str, sizes: Mapping[str, int]
    ) -> None:
        """Appends a data set."""
        self._journal.append(Dataset(name, digest, context, self._mask.text(source), dict(sizes)))

    def rewind(self, step: int) -> None:
        """Begins another segment of the journal, if the run had been further."""
        self._journal.rewind(step)

    def close(self, status: RunStatus, seconds: float | None = None) -> None:
        """Appends the status, and waits for the follower; see `FollowerProcess.finish`."""
        if self._closed:
            return
        self._closed = True
        end_time = None if self._adds else self._clock()
        self._journal.append(End(status, self._journal.lost, end_time))
        self._journal.close()
        self._directory.release()
        longest = math.inf if seconds is None else seconds
        run_directory = self._directory.run_directory
        for path in self._follower.finish(run_directory, self._close_seconds, longest):
            left = TrackingDirectory(path)
            logger.warning(
                "Not all that the run recorded is delivered yet. It is kept in %s; a process"
                " delivers on for a time and tells of it in %s. When the store is back:"
                " python -m runner.sync %s",
                left.journal,
                left.log,
                shlex.quote(str(left.run_directory)),
            )

    def location(self) -> str:
        """Returns the run's page or its id and store, and the folder of event files."""
        return self._store.location(self._directory.run_directory)


class JournalStore(RunStore):
    """Runs that are recorded through journals, in MLflow, as event files, or both.

    Args:
      config: where, and how.
      mask: knows the secrets.
      follower: a follower that has been started ahead; None starts one for each run.
      clock: gives the present time, in milliseconds since the epoch.

    Raises:
      TrackingError: the URI is malformed, or of a kind that MLflow does not offer.
    """

    def __init__(
        self,
        config: TrackingConfig,
        mask: Mask,
        follower: FollowerProcess | None = None,
        clock: Callable[[], int] = present,
    ) -> None:
        self._config = config
        self._mask = mask
        self._follower = follower
        self._clock = clock
        uri = mlflow_uri(config)
        self._address = resolve(uri, Path.cwd()) if uri else None
        self._opened: MlflowStore | None = None

    def connect(self) -> None:
        """Looks whether an SQLite store that exists can be read."""
        if self._address is not None and self._address.database is not None:
            _look_at(self._address, self._address.database)

    def open(
        self,
        directory: Path,
        experiment: str,
        run_name: str,
        tags: Mapping[str, str],
        parent: str | None = None,
        ended: RunStatus | None = None,
    ) -> Tracker:
        """Opens the run's journal and has it followed."""
        files = TrackingDirectory(directory.absolute())
        try:
            files.claim()
        except Timeout as error:
            raise TrackingError(
                Problem(
                    f"nothing can be recorded from {directory}",
                    "another process records from it",
                    "wait for it, or end it",
                )
            ) from error
        opening = files.opening() or Opening(
            uuid.uuid4().hex,
            experiment,
            run_name,
            _masked(tags, self._mask),
            parent,
            start_time=self._clock(),
        )
        files.write_opening(
            replace(
                opening,
                stores=tuple(self._stores()),
                system_metrics=self._config.system_metrics,
                patience_seconds=self._config.patience_seconds,
                ended=ended.value if ended else None,
            )
        )
        follower, self._follower = self._follower, None
        if follower is None:
            follower = FollowerProcess()
            follower.start(self._address.uri if self._address else None)
        follower.follow(files.run_directory, Path(parent).absolute() if parent else None)
        journal = Journal(files.journal)
        return JournalTracker(
            files,
            journal,
            follower,
            self._mask,
            self,
            self._config.close_seconds,
            adds=ended is not None,
            clock=self._clock,
        )

    def run_id(self, directory: Path) -> str | None:
        """Returns MLflow's id of the run."""
        if self._address is None:
            return None
        return TrackingDirectory(directory).position(self._address.uri).run_id

    def finished(self, experiment: str, tags: Mapping[str, str]) -> list[TrackedRun]:
        """Asks MLflow."""
        if self._address is None:
            return []
        return self._mlflow(experiment).finished(experiment, tags)

    @property
    def store(self) -> str:
        """MLflow's tracking URI, passwords masked; empty for event files alone."""
        return self._address.shown if self._address else ""

    def pin(self, uri: str) -> str:
        """Asks MLflow."""
        return self._mlflow(uri).pin(uri)

    def download(self, uri: str, folder: str) -> str:
        """Asks MLflow."""
        return self._mlflow(uri).download(uri, folder)

    def keep_model(
        self,
        directory: Path,
        model: ExportedModel,
        register: str | None = None,
        alias: str | None = None,
    ) -> str | None:
        """Gives it to MLflow."""
        if self._address is None:
            return None
        run_id = self.run_id(directory)
        if run_id is None:
            raise TrackingError(
                Problem(
                    f"the model of {directory} cannot be kept in {self.store}",
                    "the run is not recorded there",
                    f"deliver it first: python -m runner.sync {shlex.quote(str(directory))}"
                    if self.recorded(directory)
                    else "train with that tracking.uri",
                )
            )
        return self._mlflow(run_id).keep_model(run_id, model, register, alias)

    def recorded(self, directory: Path) -> bool:
        """Whether the directory holds a journal."""
        return TrackingDirectory(directory).opening() is not None

    def settle(self, directory: Path) -> None:
        """Leaves that to a follower, unless the one of the run itself has done it."""
        files = TrackingDirectory(directory.absolute())
        opening = files.opening()
        unsettled = {None, RunStatus.RUNNING.value}
        if opening is None or unsettled.isdisjoint(
            files.position(uri).status for uri in opening.stores
        ):
            return
        follower = living_follower(mlflow_uri(self._config))
        if follower is None:
            follower = FollowerProcess()
            follower.start(None)
        follower.follow(files.run_directory, Path(opening.parent) if opening.parent else None)
        follower.leave()

    def location(self, directory: Path) -> str:
        """Returns where the run of a run directory is recorded, in words to show."""
        files = TrackingDirectory(directory)
        places = []
        if self._address is not None:
            position = files.position(self._address.uri)
            places.append(_place(self._address, position.run_id, position.experiment_id))
        if self._config.tensorboard:
            places.append(f"event files in {files.tensorboard}")
        return "; ".join(places)

    def open_command(self) -> str:
        """Returns the command that serves MLflow's results, or opens the server's page."""
        return self._address.open_command() if self._address else ""

    def _mlflow(self, uri: str) -> MlflowStore:
        if self._address is None:
            raise no_artifacts(uri)
        if self._opened is None:
            # Importing MLflow takes seconds, which only who asks it owes.
            from runner.tracking.mlflow_tracker import MlflowStore

            self._opened = MlflowStore(self._address.uri)
        return self._opened

    def _stores(self) -> Sequence[str]:
        stores = [self._address.uri] if self._address else []
        return [*stores, TENSORBOARD] if self._config.tensorboard else stores


def _masked(tags: Mapping[str, str], mask: Mask) -> dict[str, str]:
    return {
        name: mask.command(value) if name == COMMAND_TAG else mask.text(str(value))
        for name, value in tags.items()
    }


def _place(address: Address, run_id: str | None, experiment_id: str | None) -> str:
    if run_id is None:
        return f"{address.shown} (not delivered yet)"
    if address.is_server:
        return f"{address.shown}/#/experiments/{experiment_id}/runs/{run_id}"
    return f"{address.shown}, run {run_id}"


def _look_at(address: Address, database: Path) -> None:
    if not database.exists():
        return
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.DatabaseError as error:
        # Another process at work on it is none of the run's business.
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            return
        raise TrackingError(
            Problem(
                f"the tracking store {address.shown} cannot be opened",
                str(error),
                "check tracking.uri and what it names; tracking=none tracks nothing",
            )
        ) from error
