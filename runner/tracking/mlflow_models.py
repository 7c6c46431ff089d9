"""Keeps an exported model with its run in MLflow, and registers it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import mlflow.pyfunc
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus, Run
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types import Schema, TensorSpec

from runner.tracking.exported_model import ExportedModel, Field

_NAME = "model"
# Where MLflow's TensorFlow flavour looks, relative to the model's folder.
_SAVED_MODEL = "saved_model"


def keep(client: MlflowClient, run: Run, model: ExportedModel) -> LoggedModel:
    """Returns the model as MLflow has it, after adding it unless the run has it already.

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
        run.info.experiment_id, _NAME, run.info.run_id, model_type="tensorflow"
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / _NAME
            _package(model, kept, run.info.run_id, package)
            client.log_model_artifacts(kept.model_id, str(package))
    except BaseException:
        client.finalize_logged_model(kept.model_id, LoggedModelStatus.FAILED)
        raise
    kept = client.finalize_logged_model(kept.model_id, LoggedModelStatus.READY)
    client.log_outputs(run.info.run_id, [LoggedModelOutput(kept.model_id, model.step)])
    return kept


def register(client: MlflowClient, kept: LoggedModel, name: str, alias: str | None) -> str:
    """Makes a kept model a version of a registered one, unless it is, and returns its URI.

    Args:
      client: a client of the store and its registry.
      kept: the model.
      name: of the registered model, which is created when there is none.
      alias: is moved to this version; None leaves all aliases where they are.

    Raises:
      MlflowException: the registry does not take it.
    """
    try:
        client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        client.create_registered_model(name)
    versions = client.search_model_versions(f"name = '{name}'")
    number = next(
        (each.version for each in versions if each.source == kept.artifact_location), None
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
    mlflow.pyfunc.save_model(
        folder,
        loader_module="mlflow.tensorflow",
        mlflow_model=description,
        signature=ModelSignature(_schema(model.inputs), _schema(model.outputs)),
        input_example=dict(model.example),
        # Given, because MLflow would otherwise load the model to find them.
        pip_requirements=[f"{each}=={version(each)}" for each in ("mlflow", "tensorflow")],
    )
    shutil.copytree(model.folder, folder / _SAVED_MODEL)


def _schema(fields: Iterable[Field]) -> Schema:
    return Schema([TensorSpec(each.dtype, each.shape, each.name) for each in fields])
