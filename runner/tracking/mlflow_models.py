"""What MLflow's URIs of models mean at a moment."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import mlflow.pyfunc
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus, Run
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types import Schema, TensorSpec

from runner.tracking.tracker import ExportedModel, Field

_ALIAS = re.compile(r"models:/([^/@]+)@([^/]+)(/.*)?")
_VERSION = re.compile(r"models:/([^/@]+)/(\d+)(/.*)?")
_LATEST = re.compile(r"models:/([^/@]+)/latest(/.*)?", re.IGNORECASE)


class ModelRegistry(Protocol):
    """The part of `mlflow.MlflowClient` that knows registered models."""

    def get_model_version_by_alias(self, name: str, alias: str) -> Any:
        """Returns the version that an alias names."""

    def get_registered_model(self, name: str) -> Any:
        """Returns a model with its versions."""

    def get_model_version_download_uri(self, name: str, version: str) -> str:
        """Returns where the files of a version are."""

    def search_model_versions(self, filter_string: str) -> Any:
        """Returns the versions that a filter matches."""


def pinned(uri: str, registry: ModelRegistry) -> str:
    """Returns the URI with a version in place of `@alias` or `/latest`; others as they are.

    Raises:
      LookupError: when `latest` is asked of a model without versions.
      Exception: whatever the registry raises for a model or alias it does not know.
    """
    alias, latest = _ALIAS.fullmatch(uri), _LATEST.fullmatch(uri)
    if alias:
        version = registry.get_model_version_by_alias(alias[1], alias[2]).version
        return f"models:/{alias[1]}/{version}{alias[3] or ''}"
    if latest:
        registry.get_registered_model(latest[1])
        versions = [
            int(each.version) for each in registry.search_model_versions(f"name = '{latest[1]}'")
        ]
        if not versions:
            raise LookupError(f"the model {latest[1]} has no version")
        return f"models:/{latest[1]}/{max(versions)}{latest[2] or ''}"
    return uri


def stored(uri: str, registry: ModelRegistry) -> str:
    """Returns where the files of a model's version are; other URIs as they are.

    MLflow's own download asks the process-wide registry for them.

    Raises:
      Exception: whatever the registry raises for a version it does not know.
    """
    version = _VERSION.fullmatch(uri)
    if not version:
        return uri
    return registry.get_model_version_download_uri(version[1], version[2]) + (version[3] or "")


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
