"""A store or a journal of its own for each test that asks for one."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.tracking_directory import TrackingDirectory
from tests.support.following import make_directory


@pytest.fixture
def store(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowStore:
    """A store in SQLite, with a cache of its own for what is downloaded from it."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    return MlflowStore(f"sqlite:///{database}")


@pytest.fixture
def client(store: MlflowStore) -> MlflowClient:
    """MLflow's own client of the store."""
    return MlflowClient(store.address.uri, store.address.uri)


@pytest.fixture
def directory(tmp_path: Path) -> TrackingDirectory:
    """That of a run to be recorded in a store in memory."""
    return make_directory(tmp_path / "run")
