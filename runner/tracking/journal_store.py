"""Records runs in journals on disk, from which a process of its own delivers them to stores."""

from __future__ import annotations

import logging
import math
import shlex
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import Timeout

from runner.config.masking import Mask
from runner.config.schema import TrackingConfig
from runner.errors import Problem, TrackingError
from runner.system.status import Status
from runner.tracking.address import resolve
from runner.tracking.follower_process import FollowerProcess, start_follower
from runner.tracking.journal import Artifact, Dataset, End, Journal, Metrics, Parameters, Tags, Text
from runner.tracking.tracker import COMMAND_TAG, ExportedModel, RunStore, TrackedRun, Tracker
from runner.tracking.tracking_directory import TENSORBOARD, Opening, TrackingDirectory

if TYPE_CHECKING:
    from runner.tracking.mlflow_store import MlflowStore

logger = logging.getLogger(__name__)


# Where `mlflow ui` serves unless told otherwise.
_LOCAL_SERVER = "http://127.0.0.1:5000"


def now() -> int:
    """Returns the present time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def mlflow_uri(config: TrackingConfig) -> str | None:
    """Returns MLflow's tracking URI, or None when nothing is recorded there."""
    return None if config.uri is None or config.uri.lower() == "none" else config.uri


class JournalTracker(Tracker):
    """Appends what one run records to its journal.

    Args:
      store: where the run is recorded.
      directory: the folder of the journal, claimed.
      follower: follows the journal.
      adds: whether the run has ended and is only added to, so that its end stays what it was.
    """

    def __init__(
        self,
        store: JournalStore,
        directory: TrackingDirectory,
        follower: FollowerProcess,
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
        """Appends parameters, secrets masked."""
        masked = {name: str(self._mask.value(name, value)) for name, value in parameters.items()}
        self._journal.append(Parameters(masked))

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Appends metrics with the present time."""
        self._journal.append(Metrics(metrics, step, now()))

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

    def log_dataset(self, dataset: Dataset) -> None:
        """Appends a data set, secrets masked."""
        self._journal.append(replace(dataset, source=self._mask.text(dataset.source)))

    def rewind(self, step: int) -> None:
        """Begins another segment of the journal, if the run had got beyond `step`."""
        self._journal.rewind(step)

    def close(self, status: Status, seconds: float | None = None) -> None:
        """Appends the status, and waits for the follower; see `FollowerProcess.finish`."""
        if self._closed:
            return
        self._closed = True
        end_time = None if self._adds else now()
        self._journal.append(End(status, self._journal.lost, end_time))
        self._journal.close()
        self._directory.release()
        longest = math.inf if seconds is None else seconds
        timeout = self._store.config.close_seconds
        for path in self._follower.finish(self._directory.run_directory, timeout, longest):
            left = TrackingDirectory(path)
            logger.warning(
                "Not all that the run recorded is delivered yet. It is kept in %s; a process"
                " delivers on for a time and logs to %s. When the store is back:"
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

    Raises:
      TrackingError: the URI is malformed, or of a kind that MLflow does not offer.
    """

    def __init__(
        self, config: TrackingConfig, mask: Mask, follower: FollowerProcess | None = None
    ) -> None:
        self.config = config
        self.mask = mask
        self._given_follower = follower
        uri = mlflow_uri(config)
        self._address = resolve(uri, Path.cwd()) if uri else None
        self._opened: MlflowStore | None = None

    def open(
        self,
        directory: Path,
        experiment: str,
        run_name: str,
        tags: Mapping[str, str],
        parent: str | None = None,
        ended: Status | None = None,
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
            _masked(tags, self.mask),
            parent,
            start_time=now(),
        )
        files.write_opening(
            replace(
                opening,
                stores=tuple(self._stores()),
                system_metrics=self.config.system_metrics,
                patience_seconds=self.config.patience_seconds,
                ended=ended.value if ended else None,
            )
        )
        follower = self._follower()
        follower.follow(files.run_directory, Path(parent).absolute() if parent else None)
        return JournalTracker(self, files, follower, adds=ended is not None)

    def run_id(self, directory: Path) -> str | None:
        """Returns MLflow's id of the run."""
        if self._address is None:
            return None
        return TrackingDirectory(directory).position(self._address.uri).run_id

    def finished(self, experiment: str, tags: Mapping[str, str]) -> list[TrackedRun]:
        """Asks MLflow."""
        return self._found().finished(experiment, tags)

    @property
    def store(self) -> str:
        """MLflow's tracking URI, passwords masked; empty for event files alone."""
        return self._address.shown if self._address else ""

    def pin(self, uri: str) -> str:
        """Asks MLflow."""
        return self._found().pin(uri)

    def download(self, uri: str, folder: str) -> str:
        """Asks MLflow."""
        return self._found().download(uri, folder)

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
        return self._mlflow().keep_model(run_id, model, register, alias)

    def recorded(self, directory: Path) -> bool:
        """Whether the directory holds a journal."""
        return TrackingDirectory(directory).opening() is not None

    def deliver_rest(self, directory: Path) -> None:
        """Gives that to the follower, unless the status has been delivered."""
        files = TrackingDirectory(directory.absolute())
        opening = files.opening()
        if opening is None:
            return
        statuses = {files.position(uri).status for uri in opening.stores}
        if statuses.isdisjoint({None, Status.RUNNING.value}):
            return
        parent = Path(opening.parent) if opening.parent else None
        self._follower().follow(files.run_directory, parent)

    def location(self, directory: Path) -> str:
        """Returns where the run of a run directory is recorded, for display."""
        places = []
        if self._address is not None:
            run_id = self.run_id(directory)
            if run_id is None:
                places.append(f"{self.store} (not delivered yet)")
            elif self._address.is_server:
                places.append(self.page(directory))
            else:
                places.append(f"{self.store}, run {run_id}")
        if self.config.tensorboard:
            places.append(f"event files in {TrackingDirectory(directory).tensorboard}")
        return "; ".join(places)

    def open_command(self) -> str:
        """Returns the command that serves MLflow's results, or opens the server's page."""
        return self._address.open_command() if self._address else ""

    def page(self, directory: Path) -> str:
        """Returns the run's page, on the server or, for a database, where `open_command` serves."""
        address = self._address
        if address is None or not (address.is_server or address.database):
            return ""
        position = TrackingDirectory(directory).position(address.uri)
        if position.run_id is None:
            return ""
        server = address.shown if address.is_server else _LOCAL_SERVER
        run = f"experiments/{position.experiment_id}/runs/{position.run_id}"
        # Without the type, a browser that is new to MLflow shows the pages of GenAI, whatever the
        # kind of the experiment is.
        return f"{server}/#/{run}?workflowType=machine_learning"

    def _follower(self) -> FollowerProcess:
        return self._given_follower or start_follower(self._address.uri if self._address else None)

    def _found(self) -> RunStore | MlflowStore:
        """Returns MLflow, or what finds nothing where nothing is recorded there."""
        return self._mlflow() if self._address else RunStore()

    def _mlflow(self) -> MlflowStore:
        if self._opened is None:
            # Importing MLflow takes seconds.
            from runner.tracking.mlflow_store import MlflowStore

            self._opened = MlflowStore(self._address.uri if self._address else None)
        return self._opened

    def _stores(self) -> Sequence[str]:
        stores = [self._address.uri] if self._address else []
        return [*stores, TENSORBOARD] if self.config.tensorboard else stores


def _masked(tags: Mapping[str, str], mask: Mask) -> dict[str, str]:
    return {
        name: mask.command(value) if name == COMMAND_TAG else mask.text(str(value))
        for name, value in tags.items()
    }
