"""One run in MLflow, and what is delivered to it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from runner.tracking.address import Address
from runner.tracking.encoding import Encoder
from runner.tracking.follower import Destination
from runner.tracking.records import Batch, Dataset, Delivery, Record, Text, batches, named
from runner.tracking.tracker import RunStatus

logger = logging.getLogger(__name__)

NOT_DELIVERED_TAG = "runner.not_delivered"
FAILURES_TAG = "runner.delivery_failures"

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

    def finish(self, status: RunStatus, missing: str, end_time: int | None = None) -> None:
        """See `Destination.finish`."""
        if self._monitor is not None and status is not RunStatus.RUNNING:
            self._monitor.finish()
            self._monitor = None
        if missing:
            self._client.set_tag(self.run_id, NOT_DELIVERED_TAG, missing)
        _set_status(self._client, self.run_id, status, end_time)

    def describe(self, error: Exception) -> str:
        """Returns the kind and the first line of an error, passwords masked."""
        return described(error, self._address)

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


def described(error: Exception, address: Address) -> str:
    """Returns the kind and the first line of an error, passwords masked."""
    words = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return address.masked(words if len(words) <= _MAX_CAUSE else f"{words[:_MAX_CAUSE]} ...")


def _set_status(client: MlflowClient, run_id: str, status: RunStatus, end_time: int | None) -> None:
    if status is RunStatus.RUNNING:
        client.update_run(run_id, status=status.value)
    else:
        client.set_terminated(run_id, status.value, end_time)


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
