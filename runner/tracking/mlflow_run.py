"""One run in MLflow: what is delivered to it, and its models."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import (
    DatasetInput,
    InputTag,
    LoggedModel,
    LoggedModelOutput,
    LoggedModelStatus,
    Metric,
    Param,
    Run,
    RunTag,
)
from mlflow.exceptions import MlflowException

from runner.system.status import Status
from runner.tracking.address import Address
from runner.tracking.encoding import (
    Delivery,
    Encoder,
    MetricPoint,
    Parameter,
    Tag,
    batches,
    named,
)
from runner.tracking.follower import Destination
from runner.tracking.journal import Artifact, Dataset, Record, Text
from runner.tracking.tracker import ExportedModel, Field

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
# MLflow's code for a store that is away: however often it comes, the store may come back.
_AWAY_CODE = "TEMPORARILY_UNAVAILABLE"
# Any other error is final when it came this often while the store answers otherwise: BAD_REQUEST
# too, which MLflow gives when another process has just written the same data set.
_MAX_FAILURES = 4
_MAX_DATASET_NAME = 500
_MAX_DIGEST = 36
_MAX_CAUSE = 500
_MODEL_NAME = "model"
# Where MLflow's TensorFlow flavour looks, relative to the model's folder.
_SAVED_MODEL = "saved_model"


class MlflowRun(Destination):
    """One existing run in MLflow."""

    def __init__(self, client: MlflowClient, run: Run, address: Address) -> None:
        self.run_id: str = run.info.run_id
        self.experiment_id: str = run.info.experiment_id
        self.name = address.shown
        self._client = client
        self._address = address
        self._encoder = Encoder(run.data.params, run.data.tags)
        self.refused: list[Delivery] = []
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
                self.refused.append(delivery)
                logger.warning("MLflow refuses %s: %s", named(delivery), self.describe(error))

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
            self._client.set_tag(self.run_id, NOT_DELIVERED_TAG, missing)
        if status is Status.RUNNING:
            self._client.update_run(self.run_id, status=status.value)
        else:
            self._client.set_terminated(self.run_id, status.value, end_time)

    def describe(self, error: Exception) -> str:
        """Returns the kind and the first line of an error, passwords masked."""
        return described(error, self._address)

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
                tags = {each.key: each for each in delivery if isinstance(each, Tag)}
                self._client.log_batch(
                    self.run_id,
                    metrics=[Metric(*each) for each in delivery if isinstance(each, MetricPoint)],
                    params=[Param(*each) for each in delivery if isinstance(each, Parameter)],
                    tags=[RunTag(*each) for each in tags.values()],
                )

    def _is_final(self, error: Exception, failures: int) -> bool:
        code = error.error_code if isinstance(error, MlflowException) else ""
        final = code in _FINAL_CODES or isinstance(error, FileNotFoundError)
        if not final and (code == _AWAY_CODE or failures < _MAX_FAILURES):
            return False
        return self._answers(failures)

    def _answers(self, failures: int) -> bool:
        """Whether the run exists and can be written to; a store may be read-only for a time."""
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


def keep_model(client: MlflowClient, run: Run, model: ExportedModel) -> LoggedModel:
    """Adds a model to a run, unless the run has it already, and returns MLflow's record of it.

    The SavedModel is described for MLflow's TensorFlow flavour as it stands, rather than saved
    anew by `mlflow.tensorflow.save_model`, which takes Keras models and `tf.Module`s only.

    Raises:
      MlflowException: the store does not take it.
    """
    for output in run.outputs.model_outputs if run.outputs else ():
        kept = client.get_logged_model(output.model_id)
        if output.step == model.step and kept.status is LoggedModelStatus.READY:
            return kept
    kept = client.create_logged_model(
        run.info.experiment_id, _MODEL_NAME, run.info.run_id, model_type="tensorflow"
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / _MODEL_NAME
            _package(model, kept, run.info.run_id, package)
            client.log_model_artifacts(kept.model_id, str(package))
    except BaseException:
        client.finalize_logged_model(kept.model_id, LoggedModelStatus.FAILED)
        raise
    kept = client.finalize_logged_model(kept.model_id, LoggedModelStatus.READY)
    client.log_outputs(run.info.run_id, [LoggedModelOutput(kept.model_id, model.step)])
    return kept


def register_model(client: MlflowClient, kept: LoggedModel, name: str, alias: str | None) -> str:
    """Registers a kept model as a version, unless it is registered already; returns its URI.

    The model `name` is created if necessary; `alias`, if any, moves to this version.

    Raises:
      MlflowException: the registry does not take it.
    """
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = client.search_model_versions(f"name = '{name}'")
    number = next(
        (version.version for version in versions if version.source == kept.artifact_location), None
    )
    if number is None:
        # Not `models:/ID`: MLflow would look that up in the process-wide store.
        number = client.create_model_version(
            name, kept.artifact_location, kept.source_run_id, model_id=kept.model_id
        ).version
    if alias is None:
        return f"models:/{name}/{number}"
    client.set_registered_model_alias(name, alias, str(number))
    return f"models:/{name}@{alias}"


def _package(model: ExportedModel, kept: LoggedModel, run_id: str, folder: Path) -> None:
    with warnings.catch_warnings():
        # MLflow warns of the type hints of its own agents. Imported only here: it takes a second.
        warnings.filterwarnings("ignore", ".*type hint", UserWarning)
        import mlflow.pyfunc
        from mlflow.models import Model, ModelSignature
        from mlflow.types import Schema, TensorSpec

    def schema(fields: Iterable[Field]) -> Schema:
        return Schema([TensorSpec(field.dtype, field.shape, field.name) for field in fields])

    description = Model(
        artifact_path=kept.artifact_location,
        run_id=run_id,
        model_uuid=kept.model_id,
        model_id=kept.model_id,
    )
    description.add_flavor(
        "tensorflow",
        saved_model_dir=_SAVED_MODEL,
        meta_graph_tags=["serve"],
        signature_def_key="serving_default",
        model_type="tf1-estimator",
    )
    with warnings.catch_warnings():
        # A graph of one's own has no data to take an example from.
        warnings.filterwarnings("ignore", ".*input example was not provided")
        mlflow.pyfunc.save_model(
            folder,
            loader_module="mlflow.tensorflow",
            mlflow_model=description,
            signature=ModelSignature(schema(model.inputs), schema(model.outputs)),
            input_example=dict(model.example) or None,
            # Given, because MLflow would otherwise load the model to find them.
            pip_requirements=[f"{each}=={version(each)}" for each in ("mlflow", "tensorflow")],
        )
    shutil.copytree(model.folder, folder / _SAVED_MODEL)
