"""Fixtures for all tests: the tables of MLflow, and a process that has imported everything."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from runner.system.imports import without_collections
from tests.support.forked import Forks

# MLflow would report its use over the network.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Imports without garbage collections, and exempts what was imported from later ones.

    Keras collects before every model.
    """
    with without_collections():
        return (yield)


@pytest.fixture(scope="module", autouse=True)
def _exempt_leftovers() -> None:
    """Exempts what earlier modules have left from later garbage collections.

    Every model that is built begins with a full one, which took up to 0.6 s of processor time: the
    libraries imported by then, and what TensorFlow never frees, are millions of objects.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of these tests share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def migrated_database(shared: Path) -> Path:
    """An empty database with MLflow's tables, to be copied; creating them takes seconds."""
    database = shared / "template.db"
    with FileLock(shared / "template.lock"):
        if not database.exists():
            from runner.tracking.mlflow_store import MlflowStore

            MlflowStore(f"sqlite:///{database}").connect()
    return database


@pytest.fixture
def database(migrated_database: Path, tmp_path: Path) -> Path:
    """A copy of the empty database, in a directory whose name needs quoting."""
    directory = tmp_path / "results of #1, 100%"
    directory.mkdir()
    return Path(shutil.copy(migrated_database, directory / "mlflow.db"))


@pytest.fixture(scope="session")
def forks(shared: Path) -> Iterator[Forks]:
    """Starts processes as forks of one that has imported everything, which takes seconds."""
    forks = Forks(shared)
    yield forks
    forks.close()


@pytest.fixture
def forked_followers(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the follower of the runs of a test a fork."""
    from runner.tracking import follower_process

    forking = types.SimpleNamespace(**vars(subprocess))
    forking.Popen = forks.start
    monkeypatch.setattr(follower_process, "subprocess", forking)
    follower = follower_process.FollowerProcess()
    monkeypatch.setattr(follower_process, "_follower", follower)
    yield
    follower.close()
