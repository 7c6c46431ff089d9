"""The runs of an MLflow tracking store: opens and finds them, and downloads their artifacts."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from runner.errors import NotInStoreError, RunnerError, TrackingError
from runner.system.status import Status
from runner.tracking.address import DEFAULT_URI, address_of
from runner.tracking.encoding import decode_key, encode_tag
from runner.tracking.mlflow_connection import open_client
from runner.tracking.mlflow_models import keep_model, register_model
from runner.tracking.mlflow_run import MlflowRun, described
from runner.tracking.stored_runs import RUN_DIR_TAG, UID_TAG, ExportedModel, TrackedRun
from runner.tracking.tracking_directory import RunIdentity

_PARENT_TAG = "mlflow.parentRunId"
# With it MLflow's pages show an experiment's runs and their charts first, not traces of GenAI.
_KIND_TAG, _KIND = "mlflow.experimentKind", "custom_model_development"
_ALIAS = re.compile(r"models:/([^/@]+)@([^/]+)(/.*)?")
_VERSION = re.compile(r"models:/([^/@]+)/(\d+)(/.*)?")
_LATEST = re.compile(r"models:/([^/@]+)/latest(/.*)?", re.IGNORECASE)
_LOGGED = re.compile(r"models:/(m-[0-9a-f]{32})(/.*)?")
_RUN = re.compile(r"runs:/([^/]+)(?:/([^/]*)(/.*)?)?")


class MlflowStore:
    """Runs in an MLflow tracking store.

    Args:
      uri: the tracking URI; None is `sqlite:///mlflow.db`. A relative SQLite path is relative
        to the current directory of the time when the store is constructed.

    Raises:
      TrackingUriError: the URI is malformed, or of a kind that MLflow does not offer.
    """

    def __init__(self, uri: str | None = None) -> None:
        self.address = address_of(uri or DEFAULT_URI, Path.cwd())
        self._client: MlflowClient | None = None

    def find_or_create(
        self, identity: RunIdentity, run_id: str | None, parent: str | None
    ) -> MlflowRun:
        """Opens a run for delivery, creating it if necessary.

        A run is created once: its tag `runner.uid` identifies it also when the process that
        created it died before it could write down the id.

        Args:
          identity: identity of the run.
          run_id: MLflow's id of the run, if known. A store that no longer has the run, because its
            database was deleted, gets another.
          parent: MLflow's id of the parent run.

        Raises:
          TrackingError: the store cannot be used, or the run or its experiment is deleted.
        """
        client = self.connect()
        with self._reported(
            f"run {identity.run_name!r} of {identity.experiment!r} cannot be opened"
        ):
            run = None if run_id is None else _existing(client, run_id)
            if run is None:
                experiment_id = self._experiment_id(client, identity.experiment)
                run = self._find(client, experiment_id, identity.uid)
            if run is None:
                tags = {**identity.tags, UID_TAG: identity.uid}
                tags |= {} if parent is None else {_PARENT_TAG: parent}
                encoded = dict(encode_tag(*tag) for tag in tags.items())
                run = client.create_run(
                    experiment_id, identity.start_time, encoded, identity.run_name
                )
        if run.info.lifecycle_stage != "active":
            raise self._deleted(
                f"run {run.info.run_id}", f"runs restore --run-id {run.info.run_id}"
            )
        return MlflowRun(client, run, self.address)

    def id_of(self, identity: RunIdentity | None) -> str | None:
        """Returns MLflow's id of an opened run that was created before, from any folder; or None.

        Raises:
          TrackingError: the store cannot be used.
        """
        if identity is None:
            return None
        client = self.connect()
        with self._reported(
            f"run {identity.run_name!r} of {identity.experiment!r} cannot be found"
        ):
            experiment = client.get_experiment_by_name(identity.experiment)
            if experiment is None:
                return None
            run = self._find(client, experiment.experiment_id, identity.uid)
            return None if run is None else str(run.info.run_id)

    def run(self, run_id: str) -> TrackedRun:
        """Returns a run.

        Raises:
          NotInStoreError: the store has no such run.
          TrackingError: the store cannot be used.
        """
        state = f"run {run_id} cannot be read"
        self._require_database(state)
        client = self.connect()
        with self._reported(state):
            run = _existing(client, run_id)
            if run is None:
                cause = f"it is not found in {self.address.shown}"
                remedy = "name the directory of a run, or an id that the store has"
                raise NotInStoreError.of(state, cause, remedy)
            return _tracked(run, client.get_experiment(run.info.experiment_id).name)

    def finished(self, experiment: str, tags: Mapping[str, str]) -> list[TrackedRun]:
        """See `RunStore.finished`; at most a thousand runs."""
        if not self.address.exists:
            return []
        client = self.connect()
        conditions = [f"attributes.status = '{Status.FINISHED.value}'"]
        for name, value in tags.items():
            tag = encode_tag(name, value)
            conditions.append(f"tags.`{tag.key}` = '{tag.value}'")
        with self._reported(f"the runs of experiment {experiment!r} cannot be listed"):
            existing = client.get_experiment_by_name(experiment)
            if existing is None:
                return []
            runs = client.search_runs(
                [existing.experiment_id],
                " and ".join(conditions),
                order_by=["attributes.start_time DESC"],
            )
        return [_tracked(run, experiment) for run in runs]

    def _require_database(self, state: str) -> None:
        if not self.address.exists:
            cause = f"there is no {self.address.database}"
            remedy = "name the store that has it: tracking.uri, or the option --tracking or --uri"
            raise NotInStoreError.of(state, cause, remedy)

    def _find(self, client: MlflowClient, experiment_id: str, uid: str) -> Run | None:
        runs = client.search_runs([experiment_id], f"tags.`{UID_TAG}` = '{uid}'", max_results=1)
        return runs[0] if runs else None

    @property
    def store(self) -> str:
        """The tracking URI, with passwords masked."""
        return self.address.shown

    def pin(self, uri: str) -> str:
        """See `RunStore.pin`."""
        state = f"{uri} is not in {self.store}"
        self._require_database(state)
        client = self.connect()
        alias, latest = _ALIAS.fullmatch(uri), _LATEST.fullmatch(uri)
        with self._reported(state):
            if alias:
                version = client.get_model_version_by_alias(alias[1], alias[2]).version
                return f"models:/{alias[1]}/{version}{alias[3] or ''}"
            if latest:
                client.get_registered_model(latest[1])
                versions = client.search_model_versions(f"name = '{latest[1]}'")
                if not versions:
                    raise LookupError(f"the model {latest[1]} has no version")
                newest = max(int(version.version) for version in versions)
                return f"models:/{latest[1]}/{newest}{latest[2] or ''}"
        return uri

    def download(self, uri: str, folder: str) -> str:
        """See `RunStore.download`."""
        client = self.connect()
        # A bar on standard error; a value that the user has set stays.
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        with self._reported(f"{uri} cannot be downloaded from {self.address.shown}"):
            source = _location(client, uri)
            return download_artifacts(source, dst_path=folder, tracking_uri=self.address.uri)

    def keep_model(
        self,
        run_id: str,
        model: ExportedModel,
        name: str | None = None,
        *,
        alias: str | None = None,
    ) -> str:
        """See `RunStore.keep_model`."""
        client = self.connect()
        with self._reported(f"the model of run {run_id} cannot be kept in {self.address.shown}"):
            logged = keep_model(client, client.get_run(run_id), model)
            if name is None:
                return f"models:/{logged.model_id}"
            return register_model(client, logged, name, alias=alias)

    def _experiment_id(self, client: MlflowClient, name: str) -> str:
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            try:
                location = self.address.artifact_location(name)
                return client.create_experiment(name, location, {_KIND_TAG: _KIND})
            except MlflowException as error:
                # Another process may have created it since.
                experiment = client.get_experiment_by_name(name)
                if experiment is None:
                    raise error
        experiment_id = experiment.experiment_id
        if experiment.lifecycle_stage != "active":
            restore = f"experiments restore --experiment-id {experiment_id}"
            raise self._deleted(f"experiment {name!r}", restore)
        if _KIND_TAG not in experiment.tags:  # A kind that a user has chosen stays.
            client.set_experiment_tag(experiment_id, _KIND_TAG, _KIND)
        return experiment_id

    def _deleted(self, name: str, restore: str) -> TrackingError:
        uri = shlex.quote(self.address.shown)
        return TrackingError.of(
            f"{name} cannot be recorded any further",
            f"it has been deleted in {self.address.shown}",
            f"restore it: MLFLOW_TRACKING_URI={uri} mlflow {restore}",
        )

    def connect(self) -> MlflowClient:
        """Returns the one client, opening the database or asking the server first."""
        if self._client is None:
            with self._reported(
                f"the tracking store {self.address.shown} cannot be opened",
                remedy="check tracking.uri and what it names; tracking.uri=none tracks nothing",
            ):
                self._client = open_client(self.address)
        return self._client

    @contextmanager
    def _reported(self, state: str, remedy: str = "") -> Iterator[None]:
        """Turns any error of MLflow and its libraries into one TrackingError."""
        try:
            yield
        except RunnerError:
            raise
        except Exception as error:
            # The second is MLflow 3.0's, of a database that a newer version wrote.
            if any(text in str(error) for text in ("out-of-date database", "locate revision")):
                remedy = (
                    "install the MLflow that wrote it, or back the database up and run:"
                    f" mlflow db upgrade {shlex.quote(self.address.shown)}"
                )
            raise TrackingError.of(state=state, cause=described(error), remedy=remedy) from error


def _existing(client: MlflowClient, run_id: str) -> Run | None:
    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def _location(client: MlflowClient, uri: str) -> str:
    """Returns the address of a model, also of one in a run, or of all files of a run.

    For these, MLflow's own download would ask the process-wide store. Other URIs stay as they are.
    """
    version, logged, of_run = (pattern.fullmatch(uri) for pattern in (_VERSION, _LOGGED, _RUN))
    if version:
        source = client.get_model_version_download_uri(version[1], version[2])
        return source + (version[3] or "")
    if logged:
        return str(client.get_logged_model(logged[1]).artifact_location) + (logged[2] or "")
    if of_run:
        run = client.get_run(of_run[1])
        if not of_run[2]:
            return str(run.info.artifact_uri)
        outputs = run.outputs.model_outputs if run.outputs else []
        for output in sorted(outputs, key=lambda output: output.step, reverse=True):
            model = client.get_logged_model(output.model_id)
            if model.name == of_run[2]:
                return str(model.artifact_location) + (of_run[3] or "")
    return uri


def _tracked(run: Run, experiment: str) -> TrackedRun:
    tags = {decode_key(key): value for key, value in run.data.tags.items()}
    return TrackedRun(
        run_id=run.info.run_id,
        experiment=experiment,
        status=Status(run.info.status),
        run_dir=Path(tags[RUN_DIR_TAG]) if RUN_DIR_TAG in tags else None,
        tags=tags,
    )
