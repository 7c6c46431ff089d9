"""An MLflow database whose tables are created once for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# MLflow would report its use over the network.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database with MLflow's tables, to be copied; creating them takes seconds."""
    from runner.tracking.mlflow_tracker import MlflowStore

    database = tmp_path_factory.mktemp("template") / "mlflow.db"
    MlflowStore(f"sqlite:///{database}").connect()
    return database
