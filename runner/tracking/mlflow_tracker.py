"""Runs recorded in MLflow."""

from __future__ import annotations

import logging
import os
import shlex
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from runner.errors import Problem, RunnerError, TrackingError
from runner.tracking.address import DEFAULT_URI, Address, exclusive, resolve
from runner.tracking.encoding import Encoder, decode_key, encode_tag
from runner.tracking.mlflow_models import pinned, stored
from runner.tracking.mlflow_run import MlflowRun, described
from runner.tracking.tracker import RUN_DIR_TAG, UID_TAG, ExportedModel, RunStatus, TrackedRun
from runner.tracking.tracking_directory import Opening

_PARENT_TAG = "mlflow.parentRunId"
# Values that MLflow's search grammar takes between single quotes without any escape.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/=+, ")
_PAGE = 100


class MlflowStore:
    """Runs in an MLflow tracking store.

    Args:
      uri: the tracking URI; None is `sqlite:///mlflow.db`. A relative SQLite path is relative
        to the directory the program is in when the store is made.

    Raises:
      TrackingUriError: the URI is malformed, or of a kind that MLflow does not offer.
    """

    def __init__(self, uri: str | None = None) -> None:
        self.address = resolve(uri or DEFAULT_URI, Path.cwd())
        self._client: MlflowClient | None = None
        self._connecting = threading.Lock()

    def connect(self) -> None:
        """Opens the database, or asks the server for an experiment."""
        self._connected()

    def open_run(self, opening: Opening, run_id: str | None, parent: str | None) -> MlflowRun:
        """Opens a run that is to be delivered to, creating it where there is none.

        A run is created once: its tag `runner.uid` tells when the process that created it died
        before it could write the id down.

        Args:
          opening: what the run is.
          run_id: MLflow's id of it; None when that is not known. A store that has no such run any
            more, its database having been deleted, gets another.
          parent: MLflow's id of the run that it is a part of; None for none.

        Raises:
          TrackingError: the store cannot be used, or the run or its experiment is deleted.
        """
        client = self._connected()
        with self._reported(f"run {opening.run_name!r} of {opening.experiment!r} cannot be opened"):
            run = None if run_id is None else _existing(client, run_id)
            if run is None:
                experiment_id = self._experiment_id(client, opening.experiment)
                run = self._find(client, experiment_id, opening.uid) or self._create(
                    client, experiment_id, opening, parent
                )
        if run.info.lifecycle_stage != "active":
            run_id = run.info.run_id
            raise TrackingError(
                Problem(
                    state=f"run {run_id} cannot be recorded any further",
                    cause=f"it has been deleted in {self.address.shown}",
                    remedy=f"restore it: {self._command(f'runs restore --run-id {run_id}')}",
                )
            )
        return MlflowRun(client, run, self.address)

    def id_of(self, opening: Opening) -> str | None:
        """Returns MLflow's id of a run that was created before, from whatever folder; or None.

        Raises:
          TrackingError: the store cannot be used.
        """
        client = self._connected()
        with self._reported(f"run {opening.run_name!r} of {opening.experiment!r} cannot be found"):
            experiment = client.get_experiment_by_name(opening.experiment)
            if experiment is None:
                return None
            run = self._find(client, experiment.experiment_id, opening.uid)
            return None if run is None else str(run.info.run_id)

    def run(self, run_id: str) -> TrackedRun:
        """Returns a run.

        Raises:
          TrackingError: the store cannot be used, or has no such run.
        """
        client = self._connected()
        with self._reported(f"run {run_id} cannot be read"):
            run = client.get_run(run_id)
            return _tracked(run, client.get_experiment(run.info.experiment_id).name)

    def finished(self, experiment: str, tags: Mapping[str, str]) -> list[TrackedRun]:
        """Returns the finished runs with these tags, the one started last first."""
        database = self.address.database
        if database is not None and not database.exists():
            return []  # A question creates no database.
        client = self._connected()
        wanted = dict(encode_tag(name, value) for name, value in tags.items())
        conditions = [f"attributes.status = '{RunStatus.FINISHED.value}'"]
        conditions += [
            f"tags.`{key}` = '{value}'"
            for key, value in wanted.items()
            if value and set(value) <= _PLAIN
        ]
        runs: list[Run] = []
        with self._reported(f"the runs of experiment {experiment!r} cannot be listed"):
            found = client.get_experiment_by_name(experiment)
            token: str | None = ""
            while found is not None and token is not None:
                page = client.search_runs(
                    [found.experiment_id],
                    " and ".join(conditions),
                    max_results=_PAGE,
                    order_by=["attributes.start_time DESC"],
                    page_token=token or None,
                )
                runs += page
                token = page.token or None
        # Values with quotes and the like are compared here, not by MLflow's search grammar.
        return [
            _tracked(run, experiment)
            for run in runs
            if all(run.data.tags.get(key) == value for key, value in wanted.items())
        ]

    def _find(self, client: MlflowClient, experiment_id: str, uid: str) -> Run | None:
        found = client.search_runs([experiment_id], f"tags.`{UID_TAG}` = '{uid}'", max_results=1)
        return found[0] if found else None

    @property
    def store(self) -> str:
        """Returns the tracking URI, passwords masked."""
        return self.address.shown

    def pin(self, uri: str) -> str:
        """See `RunStore.pin`."""
        database = self.address.database
        if database is not None and not database.exists():
            # A question creates no database.
            cause, remedy = f"there is no {database}", "set tracking.uri to the store that has it"
            raise TrackingError(Problem(f"{uri} is not in {self.store}", cause, remedy))
        with self._reported(f"{uri} is not in {self.store}"):
            return pinned(uri, self._connected())

    def download(self, uri: str, folder: str) -> str:
        """See `RunStore.download`."""
        client = self._connected()
        # A bar on standard error; what the user has set stays.
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        with self._reported(f"{uri} cannot be downloaded from {self.store}"):
            return download_artifacts(
                stored(uri, client), dst_path=folder, tracking_uri=self.address.uri
            )

    def keep_model(
        self, run_id: str, model: ExportedModel, name: str | None, alias: str | None
    ) -> str:
        """See `RunStore.keep_model`."""
        # Importing its parts for models takes MLflow a second, which few runs owe.
        with warnings.catch_warnings():
            # MLflow warns of the type hints of its own agents.
            warnings.filterwarnings("ignore", ".*type hint", UserWarning)
            from runner.tracking.mlflow_models import keep, register

        client = self._connected()
        with self._reported(f"the model of run {run_id} cannot be kept in {self.store}"):
            kept = keep(client, client.get_run(run_id), model)
            if name is None:
                return f"models:/{kept.model_id}"
            return register(client, kept, name, alias)

    def _create(
        self, client: MlflowClient, experiment_id: str, opening: Opening, parent: str | None
    ) -> Run:
        tags = {**opening.tags, UID_TAG: opening.uid}
        if parent is not None:
            tags[_PARENT_TAG] = parent
        encoded = {tag.key: tag.value for tag in Encoder({}, {}).encode_tags(tags)}
        return client.create_run(experiment_id, opening.start_time, encoded, opening.run_name)

    def _experiment_id(self, client: MlflowClient, name: str) -> str:
        found = client.get_experiment_by_name(name)
        if found is None:
            try:
                return client.create_experiment(name, self.address.artifact_location(name))
            except MlflowException as error:
                # Another process may have created it since.
                found = client.get_experiment_by_name(name)
                if found is None:
                    raise error
        if found.lifecycle_stage != "active":
            restore = self._command(f"experiments restore --experiment-id {found.experiment_id}")
            raise TrackingError(
                Problem(
                    state=f"no run of experiment {name!r} can be started",
                    cause=f"the experiment has been deleted in {self.address.shown}",
                    remedy=f"restore it: {restore}; or choose another name: name=NAME",
                )
            )
        return found.experiment_id

    def _command(self, arguments: str) -> str:
        return f"MLFLOW_TRACKING_URI={shlex.quote(self.address.shown)} mlflow {arguments}"

    def _connected(self) -> MlflowClient:
        with self._connecting:
            if self._client is None:
                _quieten()
                with self._reported(
                    f"the tracking store {self.address.shown} cannot be opened",
                    remedy="check tracking.uri and what it names; tracking.uri=none tracks nothing",
                ):
                    self._client = _open(self.address)
            return self._client

    @contextmanager
    def _reported(self, state: str, remedy: str = "") -> Iterator[None]:
        """Turns whatever MLflow and its libraries raise into one TrackingError."""
        try:
            yield
        except RunnerError:
            raise
        except Exception as error:
            if "out-of-date database schema" in str(error):
                remedy = (
                    "install the MLflow that wrote it, or back the database up and run:"
                    f" mlflow db upgrade {shlex.quote(self.address.shown)}"
                )
            raise TrackingError(
                Problem(state=state, cause=described(error, self.address), remedy=remedy)
            ) from error


def _open(address: Address) -> MlflowClient:
    if address.database is not None:
        with exclusive(address.database):
            return _client(address)
    if address.is_server:
        # MLflow's own defaults try for minutes. What the user has set stays.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        client = _client(address)
        client.search_experiments(max_results=1)
        return client
    if address.scheme != "databricks":
        # MLflow tries for 100 seconds, also what can never succeed.
        engine = sqlalchemy.create_engine(address.uri, poolclass=sqlalchemy.NullPool)
        engine.connect().close()
    return _client(address)


def _client(address: Address) -> MlflowClient:
    return MlflowClient(tracking_uri=address.uri, registry_uri=address.uri)


def _quieten() -> None:
    """Leaves warnings of MLflow's to be seen, not its progress nor what is reported here."""
    levels = {
        "alembic": logging.WARNING,
        "mlflow.store.db.utils": logging.CRITICAL,
        "urllib3.connectionpool": logging.ERROR,
    }
    if "MLFLOW_LOGGING_LEVEL" not in os.environ:
        levels["mlflow"] = logging.WARNING
    for name, level in levels.items():
        chosen = logging.getLogger(name)
        if name == "mlflow" or chosen.level == logging.NOTSET:
            chosen.setLevel(level)


def _existing(client: MlflowClient, run_id: str) -> Run | None:
    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def _tracked(run: Run, experiment: str) -> TrackedRun:
    tags = {decode_key(key): value for key, value in run.data.tags.items()}
    return TrackedRun(
        run_id=run.info.run_id,
        experiment=experiment,
        name=run.info.run_name,
        status=RunStatus(run.info.status),
        run_dir=Path(tags[RUN_DIR_TAG]) if RUN_DIR_TAG in tags else None,
        tags=tags,
        start_time=run.info.start_time,
        end_time=run.info.end_time,
    )
