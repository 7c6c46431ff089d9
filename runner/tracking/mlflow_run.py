"""MLflow as a store of runs: delivers the records of one run."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import (
    DatasetInput,
    InputTag,
    Metric,
    Param,
    Run,
    RunTag,
)
from mlflow.exceptions import MlflowException

from runner.config.masking import without_passwords
from runner.internals.mlflow import without_stored_nans
from runner.system.status import Status
from runner.tracking.address import Address
from runner.tracking.destination import Destination
from runner.tracking.encoding import (
    MAX_TAG_LENGTH,
    Delivery,
    Encoder,
    Entry,
    MetricPoint,
    Parameter,
    Tag,
    batches,
    description,
    shorten,
)
from runner.tracking.journal import Artifact, Dataset, Record, Text

logger = logging.getLogger(__name__)

NOT_DELIVERED_TAG = "runner.not_delivered"
FAILURES_TAG = "runner.delivery_failures"

# Trying again cannot change these answers.
_FINAL_CODES = {
    "INVALID_PARAMETER_VALUE",
    "INVALID_STATE",
    "MALFORMED_REQUEST",
    "PERMISSION_DENIED",
    "RESOURCE_ALREADY_EXISTS",
    "RESOURCE_DOES_NOT_EXIST",
}
# MLflow's code for a store that is unavailable. It is never final: the store may come back.
_AWAY_CODE = "TEMPORARILY_UNAVAILABLE"
# Any other error is final after so many failures while the store answers other requests. That holds
# for BAD_REQUEST too, which MLflow returns when another process has just written the same data set.
_MAX_FAILURES = 4
_MAX_DATASET_NAME = 500
_MAX_DIGEST = 36
_MAX_CAUSE = 500


class MlflowRun(Destination):
    """One existing run in MLflow."""

    def __init__(self, client: MlflowClient, run: Run, address: Address) -> None:
        self.run_id: str = run.info.run_id
        self.experiment_id: str = run.info.experiment_id
        self.name = address.shown
        self._client = client
        self._address = address
        self._encoder = Encoder(run.data.params, run.data.tags)
        self.refused: list[Entry] = []
        self._monitor: Any = None

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
            middle = len(delivery) // 2
            if middle:
                for half in (delivery[:middle], delivery[middle:]):
                    self.deliver(half, failures)
            else:
                self.refused += delivery
                logger.warning("MLflow refuses %s: %s", description(delivery), self.describe(error))

    def monitor(self) -> None:
        """Records the load of this machine, as metrics `system/...`, until the run has ended."""
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self._monitor = SystemMetricsMonitor(  # type: ignore[no-untyped-call]
            self.run_id, resume_logging=True, tracking_uri=self._address.uri
        )
        self._monitor.start()

    def finish(self, status: Status, missing: str, end_time: int | None = None) -> None:
        """See `Destination.finish`."""
        if self._monitor is not None and status is not Status.RUNNING:
            self._monitor.finish()
            self._monitor = None
        if missing:
            self._client.set_tag(self.run_id, NOT_DELIVERED_TAG, shorten(missing, MAX_TAG_LENGTH))
        if status is Status.RUNNING:
            self._client.update_run(self.run_id, status=status.value)
        else:
            self._client.set_terminated(self.run_id, status.value, end_time)

    def describe(self, error: Exception) -> str:
        """Returns the type and the first line of an error, with passwords masked."""
        return described(error)

    def _send(self, delivery: Delivery) -> None:
        match delivery:
            case (Text(text, file),):
                self._client.log_text(self.run_id, text, file)
            case (Artifact(path, folder),):
                self._client.log_artifact(self.run_id, str(path), folder or None)
            case (Dataset() as dataset,):
                self._client.log_inputs(self.run_id, [_dataset_input(dataset)])
            case _:
                # Of several values for one tag the last counts.
                tags = {entry.key: entry for entry in delivery if isinstance(entry, Tag)}
                self._log_batch(
                    [Metric(*entry) for entry in delivery if isinstance(entry, MetricPoint)],
                    [Param(*entry) for entry in delivery if isinstance(entry, Parameter)],
                    [RunTag(*tag) for tag in tags.values()],
                )

    def _log_batch(self, metrics: list[Metric], *others: Any) -> None:
        try:
            self._client.log_batch(self.run_id, metrics, *others)
        except MlflowException:
            missing = without_stored_nans(self._client, self.run_id, metrics)
            if len(missing) == len(metrics):
                raise
            self._client.log_batch(self.run_id, missing, *others)

    def _is_final(self, error: Exception, failures: int) -> bool:
        code = error.error_code if isinstance(error, MlflowException) else ""
        final = code in _FINAL_CODES or isinstance(error, FileNotFoundError)
        if not final and (code == _AWAY_CODE or failures < _MAX_FAILURES):
            return False
        return self._answers(failures)

    def _answers(self, failures: int) -> bool:
        """Returns whether the run can be written to; a store may be read-only for a time."""
        try:
            run = self._client.get_run(self.run_id)
            # Another value each time: MLflow does not write what is there.
            self._client.set_tag(self.run_id, FAILURES_TAG, f"{failures} at {time.time():.0f}")
        except Exception as error:  # noqa: BLE001 - then it cannot
            logger.debug("Run %s cannot be written to: %s", self.run_id, self.describe(error))
            return False
        return bool(run.info.lifecycle_stage == "active")


def described(error: Exception) -> str:
    """Returns the type and the first line of an error, with passwords masked."""
    words = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    words = without_passwords(words)
    return words if len(words) <= _MAX_CAUSE else f"{words[:_MAX_CAUSE]} ..."


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
