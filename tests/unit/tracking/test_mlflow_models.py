"""A model is kept with its run and registered, once, and MLflow's own tools load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import tensorflow as tf
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput, Run

from runner.errors import TrackingError
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.tracker import ExportedModel, Field


@pytest.fixture
def run_id(client: MlflowClient, tmp_path: Path) -> str:
    experiment = client.create_experiment("e", (tmp_path / "artifacts").as_uri())
    run_id = str(client.create_run(experiment).info.run_id)
    client.set_terminated(run_id)
    return run_id


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    """It takes `features` [n, 3] and gives their sums and what is twice as much."""
    folder = tmp_path_factory.mktemp("model") / "export"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        features = tf.compat.v1.placeholder(tf.float32, [None, 3])
        sums = tf.reduce_sum(features, 1, keepdims=True)
        tf.compat.v1.saved_model.simple_save(
            session, str(folder), {"features": features}, {"sums": sums, "twice": 2 * sums}
        )
    number = np.dtype("float32")
    return ExportedModel(
        folder,
        12,
        (Field("features", number, (-1, 3)),),
        (Field("sums", number, (-1, 1)), Field("twice", number, (-1, 1))),
        {"features": np.ones([1, 3], number)},
    )


@pytest.fixture
def mlflow_here(store: MlflowStore, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.address.uri)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", store.address.uri)
    return mlflow


def _kept(run: Run) -> list[LoggedModelOutput]:
    return run.outputs.model_outputs if run.outputs else []


def test_mlflow_loads_what_is_kept_and_registered(
    store: MlflowStore, run_id: str, model: ExportedModel, client: MlflowClient, mlflow_here: Any
) -> None:
    kept = store.keep_model(run_id, model, None, None)
    assert store.keep_model(run_id, model, "net", "champion") == "models:/net@champion"
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    for uri in (kept, "models:/net/1", "models:/net@champion"):
        served = mlflow_here.tensorflow.load_model(uri)
        assert served(features=tf.constant(values))["twice"].numpy().tolist() == [[6.0], [24.0]]
    general = mlflow_here.pyfunc.load_model("models:/net@champion")
    assert np.ravel(general.predict({"features": values})["sums"]).tolist() == [3.0, 12.0]
    assert general.input_example["features"].tolist() == [[1.0, 1.0, 1.0]]
    assert [each.name for each in general.metadata.signature.outputs.inputs] == ["sums", "twice"]
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert [each.step for each in _kept(run)] == [12]


def test_one_model_is_kept_and_registered_once(
    store: MlflowStore, run_id: str, model: ExportedModel, client: MlflowClient
) -> None:
    kept = store.keep_model(run_id, model, None, None)
    assert store.keep_model(run_id, model, None, None) == kept
    assert store.keep_model(run_id, model, "net", None) == "models:/net/1"
    assert store.keep_model(run_id, model, "net", None) == "models:/net/1"
    assert store.keep_model(run_id, model, "net", "new") == "models:/net@new"
    assert len(client.search_model_versions("name = 'net'")) == 1


def test_what_mlflow_refuses_leaves_no_half_of_a_model(
    store: MlflowStore, run_id: str, model: ExportedModel, client: MlflowClient, tmp_path: Path
) -> None:
    gone = ExportedModel(tmp_path / "gone", 12, model.inputs, model.outputs, model.example)
    with pytest.raises(TrackingError, match=rf"the model of run {run_id} cannot be kept in sqlite"):
        store.keep_model(run_id, gone, None, None)
    assert not _kept(client.get_run(run_id))
    (failed,) = client.search_logged_models([client.get_run(run_id).info.experiment_id])
    assert str(failed.status) == "FAILED"
    # The next attempt makes a whole one.
    store.keep_model(run_id, model, None, None)
    assert len(_kept(client.get_run(run_id))) == 1
