from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.checkpoints.locate import is_mlflow_uri, resolve
from runner.checkpoints.open import open_checkpoint
from runner.errors import CheckpointError


class Store:
    """A store with one model, whose alias can move."""

    store = "sqlite:///somewhere.db"

    def __init__(self) -> None:
        self.version = 1
        self.downloads: list[str] = []

    def pin(self, uri: str) -> str:
        return uri.replace("@champion", f"/{self.version}")

    def download(self, uri: str, folder: str) -> str:
        self.downloads.append(uri)
        target = Path(folder) / "model"
        target.mkdir()
        np.savez(target / "weights.npz", w=np.full(2, float(self.version)))
        return str(target)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))
    return Store()


def _value(uri: str, store: Store) -> float:
    (path,) = resolve(uri, artifacts=store)
    ((_, value),) = open_checkpoint(path).read(["w"])
    return float(np.asarray(value)[0])


@pytest.mark.parametrize("uri", ["runs:/1234/model", "models:/m/3", "mlflow-artifacts:/1/model"])
def test_an_artifact_is_downloaded_once(uri: str, store: Store) -> None:
    assert is_mlflow_uri(uri)
    assert _value(uri, store) == _value(uri, store) == 1
    assert store.downloads == [uri]


def test_a_moved_alias_is_followed(store: Store) -> None:
    assert _value("models:/m@champion", store) == 1
    store.version = 2
    assert _value("models:/m@champion", store) == 2
    assert store.downloads == ["models:/m/1", "models:/m/2"]


def test_equal_uris_of_two_stores_are_two_artifacts(store: Store) -> None:
    assert _value("models:/m/1", store) == 1
    other = Store()
    other.store, other.version = "sqlite:///elsewhere.db", 5
    assert _value("models:/m/1", other) == 5


def test_a_uri_without_a_store_is_explained() -> None:
    with pytest.raises(
        CheckpointError, match="runs:/1/m is in MLflow, and no tracking store is given"
    ):
        resolve("runs:/1/m")


@pytest.mark.parametrize("path", ["runs/tiny", "models", "gs://bucket/model", "/runs:/x"])
def test_other_paths_are_no_uris(path: str) -> None:
    assert not is_mlflow_uri(path)
