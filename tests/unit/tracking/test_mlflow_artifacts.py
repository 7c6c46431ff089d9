"""MLflow URIs are pinned to versions and downloaded, or said not to be there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from runner.checkpoints.locate import resolve
from runner.errors import TrackingError
from runner.tracking.mlflow_store import MlflowStore


@pytest.fixture
def run_id(client: MlflowClient, tmp_path: Path) -> str:
    """A run with the file `best/weights.npz`, registered as versions 1 and 2 of `net`."""
    location = (tmp_path / "artifacts").as_uri()
    run = client.create_run(client.create_experiment("e", location))
    client.log_text(run.info.run_id, "content", "best/weights.npz")
    client.create_registered_model("net")
    source = f"{run.info.artifact_uri}/best"
    for _ in range(2):
        client.create_model_version("net", source, run.info.run_id)
    client.set_registered_model_alias("net", "champion", "1")
    return str(run.info.run_id)


@pytest.mark.usefixtures("run_id")
@pytest.mark.parametrize(
    ("uri", "pinned"),
    [
        ("models:/net@champion", "models:/net/1"),
        ("models:/net@champion/weights.npz", "models:/net/1/weights.npz"),
        ("models:/net/latest", "models:/net/2"),
        ("models:/net/2", "models:/net/2"),
        ("runs:/abc/best", "runs:/abc/best"),
        ("mlflow-artifacts:/a/b", "mlflow-artifacts:/a/b"),
    ],
)
def test_an_alias_is_pinned_to_its_version(store: MlflowStore, uri: str, pinned: str) -> None:
    assert store.pin(uri) == pinned


@pytest.mark.usefixtures("run_id")
def test_a_model_is_downloaded_once_for_each_version(
    store: MlflowStore, client: MlflowClient, tmp_path: Path
) -> None:
    (first,) = resolve("models:/net@champion/weights.npz", artifacts=store)
    assert Path(first).read_text() == "content"
    assert Path(first).is_relative_to(tmp_path / "cache")
    shutil.rmtree(tmp_path / "artifacts")
    assert resolve("models:/net@champion/weights.npz", artifacts=store) == [first]
    client.set_registered_model_alias("net", "champion", "2")
    with pytest.raises(TrackingError, match=r"models:/net/2/weights\.npz cannot be downloaded"):
        resolve("models:/net@champion/weights.npz", artifacts=store)


def test_a_file_of_a_run_is_downloaded(store: MlflowStore, run_id: str) -> None:
    (found,) = resolve(f"runs:/{run_id}/best/weights.npz", artifacts=store)
    assert Path(found).read_text() == "content"


@pytest.mark.usefixtures("run_id")
@pytest.mark.parametrize("uri", ["models:/net@nobody", "models:/other/latest", "models:/other@a"])
def test_what_is_not_registered_is_said(store: MlflowStore, uri: str) -> None:
    with pytest.raises(TrackingError, match=f"{uri} is not in sqlite:"):
        store.pin(uri)


def test_a_question_creates_no_database(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match=r"runs:/1/x is not in sqlite:.*\n.*there is no "):
        MlflowStore(f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}").pin("runs:/1/x")
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_versions_has_no_latest(store: MlflowStore, client: MlflowClient) -> None:
    client.create_registered_model("empty")
    with pytest.raises(TrackingError, match="the model empty has no version"):
        store.pin("models:/empty/latest")


def test_a_lost_artifact_is_said(store: MlflowStore, run_id: str) -> None:
    with pytest.raises(TrackingError, match=f"runs:/{run_id}/nothing cannot be downloaded"):
        resolve(f"runs:/{run_id}/nothing", artifacts=store)
