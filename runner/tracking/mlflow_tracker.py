"""Runs recorded in MLflow: the only module that imports it."""

from __future__ import annotations

import json
import logging
import os
import shlex
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from runner.errors import Problem, RunnerError, TrackingError
from runner.tracking.address import DEFAULT_URI, Address, resolve
from runner.tracking.batching import batches
from runner.tracking.destination import Destination
from runner.tracking.encoding import Encoder, encode_tag
from runner.tracking.keys import decode_key
from runner.tracking.mlflow_artifacts import pinned, stored
from runner.tracking.records import Batch, Dataset, Delivery, Record, Text, named
from runner.tracking.sqlite_database import exclusive
from runner.tracking.tracker import RUN_DIR_TAG, UID_TAG, RunStatus, TrackedRun
from runner.tracking.tracking_directory import Opening

logger = logging.getLogger(__name__)

NOT_DELIVERED_TAG = "runner.not_delivered"
FAILURES_TAG = "runner.delivery_failures"

_PARENT_TAG = "mlflow.parentRunId"
# Trying again cannot change these answers.
_FINAL_CODES = {
    "BAD_REQUEST",
    "INVALID_PARAMETER_VALUE",
    "INVALID_STATE",
    "MALFORMED_REQUEST",
    "PERMISSION_DENIED",
    "RESOURCE_ALREADY_EXISTS",
    "RESOURCE_DOES_NOT_EXIST",
}
# MLflow's code for a store that is away: however often it comes, the store may come back.
_AWAY_CODE = "TEMPORARILY_UNAVAILABLE"
# Any other error is final when it came this often while the store answers otherwise.
_MAX_FAILURES = 4
# Values that MLflow's search grammar takes between single quotes without any escape.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/=+, ")
_PAGE = 100
_MAX_DATASET_NAME = 500
_MAX_DIGEST = 36
_MAX_CAUSE = 500


class MlflowRun(Destination):
    """One existing run in MLflow.

    Args:
      client: a client of the store.
      run: the run as the store last gave it.
      address: where the store is, for messages.
    """

    def __init__(self, client: MlflowClient, run: Run, address: Address) -> None:
        self.run_id: str = run.info.run_id
        self.experiment_id: str = run.info.experiment_id
        self.name = address.shown
        self._client = client
        self._address = address
        self._encoder = Encoder(run.data.params, run.data.tags)
        self._refused: list[Delivery] = []
        self._monitor: Any = None

    @property
    def refused(self) -> Sequence[Delivery]:
        """What MLflow would never take; narrowed down to single entries."""
        return tuple(self._refused)

    def deliveries(self, records: Iterable[Record]) -> Iterable[Delivery]:
        """Yields requests within MLflow's limits."""
        return batches(self._encoder.encode(records))

    def deliver(self, delivery: Delivery, failures: int = 0) -> None:
        """See `Destination.deliver`."""
        try:
            self._send(delivery)
        except Exception as error:
            if not self._is_final(error, failures):
                raise
            if isinstance(delivery, Batch) and len(delivery) > 1:
                for half in delivery.halves():
                    self.deliver(half, failures)
            else:
                self._refused.append(delivery)
                logger.warning("MLflow refuses %s: %s", named(delivery), self.describe(error))

    def monitor(self) -> None:
        """Records the load of this machine, as metrics `system/...`, until the run has ended."""
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self._monitor = SystemMetricsMonitor(  # type: ignore[no-untyped-call]
            self.run_id, resume_logging=True, tracking_uri=self._address.uri
        )
        self._monitor.start()

    def finish(self, status: RunStatus, missing: str) -> None:
        """See `Destination.finish`."""
        if self._monitor is not None and status is not RunStatus.RUNNING:
            self._monitor.finish()
            self._monitor = None
        if missing:
            self._client.set_tag(self.run_id, NOT_DELIVERED_TAG, missing)
        _set_status(self._client, self.run_id, status)

    def describe(self, error: Exception) -> str:
        """Returns the kind and the first line of an error, passwords masked."""
        return _described(error, self._address)

    def _send(self, delivery: Delivery) -> None:
        if isinstance(delivery, Batch):
            self._client.log_batch(
                self.run_id,
                metrics=[Metric(*point) for point in delivery.metrics],
                params=[Param(*parameter) for parameter in delivery.parameters],
                tags=[RunTag(*tag) for tag in delivery.tags],
            )
        elif isinstance(delivery, Text):
            self._client.log_text(self.run_id, delivery.text, delivery.file)
        elif isinstance(delivery, Dataset):
            self._client.log_inputs(self.run_id, [_dataset_input(delivery)])
        else:
            self._client.log_artifact(self.run_id, str(delivery.path), delivery.folder or None)

    def _is_final(self, error: Exception, failures: int) -> bool:
        code = error.error_code if isinstance(error, MlflowException) else ""
        final = code in _FINAL_CODES or isinstance(error, FileNotFoundError)
        if not final and (code == _AWAY_CODE or failures < _MAX_FAILURES):
            return False
        return self._answers(failures)

    def _answers(self, failures: int) -> bool:
        """Whether the run is there and can be written to; a store may be read-only for a time."""
        try:
            run = self._client.get_run(self.run_id)
            # Another value each time: MLflow does not write what is there.
            self._client.set_tag(self.run_id, FAILURES_TAG, f"{failures} at {time.time():.0f}")
        except Exception as error:  # noqa: BLE001 - then it is not
            logger.debug("Run %s cannot be written to: %s", self.run_id, self.describe(error))
            return False
        return bool(run.info.lifecycle_stage == "active")


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

    def _create(
        self, client: MlflowClient, experiment_id: str, opening: Opening, parent: str | None
    ) -> Run:
        tags = {**opening.tags, UID_TAG: opening.uid}
        if parent is not None:
            tags[_PARENT_TAG] = parent
        encoded = {tag.key: tag.value for tag in Encoder({}, {}).encode_tags(tags)}
        return client.create_run(experiment_id, tags=encoded, run_name=opening.run_name)

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
                Problem(state=state, cause=_described(error, self.address), remedy=remedy)
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


def _set_status(client: MlflowClient, run_id: str, status: RunStatus) -> None:
    if status is RunStatus.RUNNING:
        client.update_run(run_id, status=status.value)
    else:
        client.set_terminated(run_id, status.value)


def _dataset_input(dataset: Dataset) -> DatasetInput:
    return DatasetInput(
        MlflowDataset(
            name=dataset.name[:_MAX_DATASET_NAME],
            digest=dataset.digest[:_MAX_DIGEST],
            source_type="code",
            source=json.dumps({"source": dataset.source}),
            profile=json.dumps(dict(dataset.sizes)),
        ),
        [InputTag("mlflow.data.context", dataset.context)] if dataset.context else [],
    )


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


def _described(error: Exception, address: Address) -> str:
    words = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return address.masked(words if len(words) <= _MAX_CAUSE else f"{words[:_MAX_CAUSE]} ...")
