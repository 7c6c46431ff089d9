"""The models of a run in MLflow: adds exported models and registers them."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus, Run
from mlflow.exceptions import MlflowException

from runner.tracking.stored_runs import ExportedModel, Field

_MODEL_NAME = "model"
# The folder that MLflow's TensorFlow flavour reads, relative to the model's folder.
_SAVED_MODEL = "saved_model"


def keep_model(client: MlflowClient, run: Run, model: ExportedModel) -> LoggedModel:
    """Adds a model to a run, unless the run has it already, and returns MLflow's record of it.

    The SavedModel is described for MLflow's TensorFlow flavour as it is.
    `mlflow.tensorflow.save_model` saves Keras models and `tf.Module`s only.

    Raises:
      MlflowException: the store refuses the model.
    """
    for output in run.outputs.model_outputs if run.outputs else ():
        logged = client.get_logged_model(output.model_id)
        if output.step == model.step and logged.status is LoggedModelStatus.READY:
            return logged
    logged = client.create_logged_model(
        run.info.experiment_id, _MODEL_NAME, run.info.run_id, model_type="tensorflow"
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / _MODEL_NAME
            _package(model, logged, package)
            client.log_model_artifacts(logged.model_id, str(package))
    except BaseException:
        client.finalize_logged_model(logged.model_id, LoggedModelStatus.FAILED)
        raise
    logged = client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
    client.log_outputs(run.info.run_id, [LoggedModelOutput(logged.model_id, model.step)])
    return logged


def register_model(
    client: MlflowClient, logged: LoggedModel, name: str, *, alias: str | None
) -> str:
    """Registers a logged model as a version, unless it is registered already; returns its URI.

    The model `name` is created if necessary; `alias`, if any, moves to this version.

    Raises:
      MlflowException: the registry refuses the model.
    """
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = client.search_model_versions(f"name = '{name}'")
    number = next(
        (version.version for version in versions if version.source == logged.artifact_location),
        None,
    )
    if number is None:
        # Not `models:/ID`: MLflow would look that up in the process-wide store.
        number = client.create_model_version(
            name, logged.artifact_location, logged.source_run_id, model_id=logged.model_id
        ).version
    if alias is None:
        return f"models:/{name}/{number}"
    client.set_registered_model_alias(name, alias, str(number))
    return f"models:/{name}@{alias}"


def _package(model: ExportedModel, logged: LoggedModel, folder: Path) -> None:
    with warnings.catch_warnings():
        # MLflow warns of the type hints of its own agents. Imported only here: it takes a second.
        warnings.filterwarnings("ignore", ".*type hint", UserWarning)
        import mlflow.pyfunc
        from mlflow.models import Model, ModelSignature
        from mlflow.types import Schema, TensorSpec

    def schema(fields: Iterable[Field]) -> Schema:
        return Schema([TensorSpec(field.dtype, field.shape, field.name) for field in fields])

    description = Model(
        artifact_path=logged.artifact_location,
        run_id=logged.source_run_id,
        model_uuid=logged.model_id,
        model_id=logged.model_id,
    )
    description.add_flavor(
        "tensorflow",
        saved_model_dir=_SAVED_MODEL,
        meta_graph_tags=["serve"],
        signature_def_key="serving_default",
        model_type="tf1-estimator",
    )
    with warnings.catch_warnings():
        # A user's graph has no data to take an example from.
        warnings.filterwarnings("ignore", ".*input example was not provided")
        mlflow.pyfunc.save_model(
            folder,
            loader_module="mlflow.tensorflow",
            mlflow_model=description,
            signature=ModelSignature(schema(model.inputs), schema(model.outputs)),
            input_example=dict(model.example) or None,
            # Without them MLflow would load the model to find its requirements.
            pip_requirements=[f"{name}=={version(name)}" for name in ("mlflow", "tensorflow")],
        )
    shutil.copytree(model.folder, folder / _SAVED_MODEL)
