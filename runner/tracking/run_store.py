"""Records runs through journals in the configured stores, and finds them in MLflow."""

from __future__ import annotations

import logging
import shlex
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import Timeout

from runner.config.masking import Mask
from runner.config.schema import TrackingConfig
from runner.errors import TrackingError
from runner.internals.mlflow import records_load_of_any_store
from runner.system.status import Status
from runner.tracking.address import Address, address_of
from runner.tracking.follower_process import FollowerProcess, start_follower
from runner.tracking.journal import (
    Artifact,
    Dataset,
    End,
    Journal,
    Metrics,
    Parameters,
    Tags,
    Text,
)
from runner.tracking.store_kinds import configured_uris, kind_of_store, mlflow_uri
from runner.tracking.stored_runs import COMMAND_TAG, ExportedModel, TrackedRun
from runner.tracking.tracking_directory import RunIdentity, TrackingDirectory, now

if TYPE_CHECKING:
    from runner.tracking.mlflow_store import MlflowStore

logger = logging.getLogger(__name__)


class Tracker:
    """Records one run: appends what it records to its journal.

    No method waits for a store or raises because of it: records that cannot be delivered are
    reported through `logging`, by `close` at the latest.

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
        """Records values that are fixed for the run, each as a string, with secrets masked."""
        masked = {name: str(self._mask.value(name, value)) for name, value in parameters.items()}
        self._journal.append(Parameters(masked))

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Records a value of each metric at a global step; of a run that has ended, new values."""
        if self._adds:  # It may have been recorded, such as by an evaluation that was killed.
            self._journal.add(step)
        if metrics:
            self._journal.append(Metrics(metrics, step, now()))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Sets tags, with secrets masked, and replaces those that exist."""
        self._journal.append(Tags(_masked(tags, self._mask)))

    def log_artifact(self, path: Path, folder: str = "", step: int | None = None) -> None:
        """Stores a copy of a file or directory, under its name, with the run.

        Args:
          path: the file or directory. It is copied after this call, when the store is available,
            so it has to stay; in the run directory, which may be moved meanwhile.
          folder: the folder among the artifacts, with `/` between the parts; the default is their
            root.
          step: the global step at which it was recorded; None for the run as a whole.
        """
        path, root = path.absolute(), self._directory.run_directory.absolute()
        inside = path.is_relative_to(root)
        place = path.relative_to(root) if inside else path
        self._journal.append(Artifact(place, folder, step, None if step is None else now()))

    def log_text(self, text: str, file: str) -> None:
        """Stores text, with secrets masked, as the artifact named `file`."""
        self._journal.append(Text(self._mask.text(text), file))

    def log_dataset(self, dataset: Dataset) -> None:
        """Records a data set that the run reads, with secrets masked."""
        self._journal.append(replace(dataset, source=self._mask.text(dataset.source)))

    def rewind(self, step: int) -> None:
        """Notes that the run resumes from `step`, so that metrics of later steps come again.

        The store has each step once, whether it came before this call or after it.
        """
        self._journal.rewind(step)

    def close(self, status: Status, remaining: Callable[[], float | None] = lambda: None) -> None:
        """Records how the run ended, and delivers the rest within a bounded time.

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
                " %s to %s. When the store is back: runner sync %s",
                undelivered.journal,
                state,
                undelivered.log,
                shlex.quote(str(path)),
            )

    def location(self) -> str:
        """Returns the run's page or its id and store, and the folder of event files."""
        return self._store.location(self._directory.run_directory)


class RunStore:
    """Records runs in the configured stores, and finds them in MLflow again.

    No store is contacted before it is needed. When the configuration names none, runs have only
    their journals, and none is found.

    Args:
      config: where runs are recorded, and how; by default nowhere.
      mask: masks the secrets of what is recorded.
      follower: delivers; by default the follower that all runs of this process share.

    Raises:
      TrackingUriError: the URI is malformed, or of a kind that MLflow does not offer.
    """

    def __init__(
        self,
        config: TrackingConfig | None = None,
        mask: Mask | None = None,
        follower: FollowerProcess | None = None,
    ) -> None:
        self.config = config or TrackingConfig(uri=None)
        self.mask = mask or Mask(self.config.mask, {})
        self._custom_follower = follower
        uri = mlflow_uri(self.config)
        self._address: Address | None = address_of(uri, Path.cwd()) if uri else None
        self._mlflow_store: MlflowStore | None = None
        self._uris = configured_uris(self.config)

    def require_usable(self) -> None:
        """Raises a TrackingUriError if MLflow's URI names a file of something else.

        A new run is refused then; one that is resumed goes on, and is delivered later.
        """
        if self._address is not None:
            self._address.require_usable()

    def open(
        self,
        directory: Path,
        experiment: str,
        run_name: str,
        *,
        tags: Mapping[str, str],
        parent: str | None = None,
        ended: Status | None = None,
    ) -> Tracker:
        """Opens the run of a run directory: a new one, or the one recorded from there before.

        Args:
          directory: the run directory.
          experiment: name of the experiment.
          run_name: display name of the run.
          tags: the first tags of a new run; `open` ignores the tags of existing runs.
          parent: directory of the parent run, such as a sweep.
          ended: the final status of a run that has ended and is only added to; it stays so.

        Raises:
          TrackingError: another process records from this directory.
        """
        files = TrackingDirectory(directory.absolute())
        try:
            files.claim()
        except Timeout as error:
            raise TrackingError.of(
                f"nothing can be recorded from {directory}",
                "another process records from it",
                "wait for it, or end it",
            ) from error
        first_tags = _masked(tags, self.mask)
        identity = files.identity() or RunIdentity(
            uuid.uuid4().hex, experiment, run_name, first_tags, parent, start_time=now()
        )
        load = self.config.system_metrics
        files.write_identity(
            replace(
                identity,
                stores=self._uris,
                system_metrics=records_load_of_any_store() if load is None else load,
                patience_seconds=self.config.patience_seconds,
                ended=ended.value if ended else None,
            )
        )
        follower = self._follower() if self._uris else None
        if follower is not None:
            follower.follow(files.run_directory, Path(parent).absolute() if parent else None)
        return Tracker(self, files, follower, adds=ended is not None)

    def recorded(self, directory: Path) -> bool:
        """Returns whether the run of a run directory is recorded, and can be recorded further."""
        return bool(self._uris) and TrackingDirectory(directory).identity() is not None

    def deliver_rest(self, directory: Path) -> None:
        """Starts the delivery of the rest of a killed process's run, and of its status.

        It neither waits for the store nor raises because of it.
        """
        files = TrackingDirectory(directory.absolute())
        identity = files.identity() if self._uris else None
        if identity is None or files.is_delivered():
            return
        parent = Path(identity.parent) if identity.parent else None
        self._follower().follow(files.run_directory, parent)

    def location(self, directory: Path) -> str:
        """Returns the places where the run of a run directory is recorded, for display."""
        files = TrackingDirectory(directory)
        places = [kind_of_store(uri).location(files, uri) for uri in self._uris]
        return "; ".join(places) or "only in the run directory: tracking is off"

    @property
    def store(self) -> str:
        """MLflow's tracking URI, with passwords masked; empty when runs are not recorded there."""
        return self._address.shown if self._address else ""

    def run_id(self, directory: Path) -> str | None:
        """Returns MLflow's id of the run of a run directory; None while it has no such run."""
        if self._address is None:
            return None
        return TrackingDirectory(directory).position(self._address.uri).run_id

    def finished(self, experiment: str, tags: Mapping[str, str]) -> list[TrackedRun]:
        """Returns the FINISHED runs of `experiment` that have all of `tags`, newest first.

        The values of the tags must not contain a quote.

        Raises:
          TrackingError: the store cannot be used.
        """
        return [] if self._address is None else self._mlflow().finished(experiment, tags)

    def pin(self, uri: str) -> str:
        """Returns the artifact's URI with a version in place of a model's alias.

        Args:
          uri: `runs:/...`, `models:/...` or `mlflow-artifacts:...`.

        Raises:
          TrackingError: the store cannot be used, or has no such model, version or alias.
        """
        return self._mlflow(uri).pin(uri)

    def download(self, uri: str, folder: str) -> str:
        """Copies the artifact at a pinned URI into a folder and returns the path of the copy.

        Raises:
          TrackingError: the store cannot be used, or there is no such artifact.
        """
        return self._mlflow(uri).download(uri, folder)

    def keep_model(
        self,
        directory: Path,
        model: ExportedModel,
        register: str | None = None,
        *,
        alias: str | None = None,
    ) -> str | None:
        """Adds an exported model to the run of a run directory, once, and registers it.

        Args:
          directory: the run directory.
          model: the model.
          register: the name under which to register the model; None does not register it.
          alias: names the registered version from now on.

        Returns:
          A URI by which MLflow's tools load the model; None when runs are not recorded there.

        Raises:
          TrackingError: the store cannot be used, does not have the run, or refuses the model.
        """
        if self._address is None:
            return None
        run_id = self.run_id(directory)
        if run_id is None:
            raise TrackingError.of(
                f"the model of {directory} cannot be kept in {self.store}",
                "the run is not recorded there",
                f"deliver it first: runner sync {shlex.quote(str(directory))}"
                if self.recorded(directory)
                else "train with that tracking.uri",
            )
        return self._mlflow().keep_model(run_id, model, register, alias=alias)

    def open_command(self) -> str:
        """Returns the shell command that shows MLflow's runs, quoted, with passwords masked."""
        return self._address.open_command() if self._address else ""

    def page(self, directory: Path) -> str:
        """Returns the address of the run's page on the server, or where `open_command` serves."""
        if self._address is None:
            return ""
        position = TrackingDirectory(directory).position(self._address.uri)
        return self._address.page(position.run_id, position.experiment_id)

    def _follower(self) -> FollowerProcess:
        return self._custom_follower or start_follower(self._address.uri if self._address else None)

    def _mlflow(self, uri: str = "") -> MlflowStore:
        """Returns MLflow, which has the artifact at `uri`."""
        if self._address is None:
            raise TrackingError.of(
                f"{uri} is in MLflow, and tracking is off",
                "tracking.uri is null, so there is no store to ask for it",
                "set tracking.uri to the store that has it, or name a path",
            )
        if self._mlflow_store is None:
            # Importing MLflow takes seconds.
            from runner.tracking.mlflow_store import MlflowStore

            self._mlflow_store = MlflowStore(self._address.uri)
        return self._mlflow_store


def _masked(tags: Mapping[str, str], mask: Mask) -> dict[str, str]:
    return {
        name: mask.command(value) if name == COMMAND_TAG else mask.text(str(value))
        for name, value in tags.items()
    }
