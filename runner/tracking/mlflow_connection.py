"""Opens MLflow's client; only one process at a time creates a database."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy
from filelock import FileLock
from mlflow import MlflowClient

from runner.errors import TrackingError
from runner.internals.mlflow import unchanged_logging
from runner.tracking.address import Address, creation_marker


def open_client(address: Address) -> MlflowClient:
    """Opens the database, or asks the server for an experiment, and returns the client."""
    _quieten()
    if address.database is not None:
        with exclusive(address.database), unchanged_logging():
            return _client(address)
    if address.is_server:
        # MLflow's defaults retry for minutes. Values that the user has set stay.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        client = _client(address)
        client.search_experiments(max_results=1)
        return client
    if address.scheme != "databricks":
        # MLflow retries for 100 seconds, even where it can never succeed.
        engine = sqlalchemy.create_engine(address.uri, poolclass=sqlalchemy.NullPool)
        engine.connect().close()
    return _client(address)


@contextmanager
def exclusive(database: Path, lock_seconds: float = 120.0) -> Iterator[None]:
    """Holds the lock `DATABASE.lock`, and makes sure that the database exists and can be read.

    Two processes that create MLflow's tables at once would both fail, and MLflow tries for minutes
    to open a file that is not a database. A database whose creation in the block was cut short is
    created again.

    Raises:
      TrackingError: another process kept the lock, or the file cannot be opened as a database.
    """
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{database}.lock", timeout=lock_seconds)
        with lock, _creation_completed(database):
            yield
    except (OSError, sqlite3.Error) as error:  # OSError: also the lock's timeout.
        raise TrackingError.of(
            f"the database {database} cannot be opened",
            str(error),
            "wait until another process has created it, or name a file that can be written, or "
            "an MLflow database: tracking.uri=...",
        ) from error


@contextmanager
def _creation_completed(database: Path) -> Iterator[None]:
    # MLflow takes seconds to create the tables, and cannot use a database for which that was cut
    # short; nothing was recorded in it yet.
    creating = creation_marker(database)
    if creating.exists():
        for part in (database, Path(f"{database}-journal")):
            part.unlink(missing_ok=True)
    if not database.exists():
        creating.touch()
    with closing(sqlite3.connect(database, timeout=20.0)) as connection:
        connection.execute("PRAGMA schema_version").fetchone()
    yield
    creating.unlink(missing_ok=True)


def _client(address: Address) -> MlflowClient:
    return MlflowClient(tracking_uri=address.uri, registry_uri=address.uri)


def _quieten() -> None:
    """Hides MLflow's messages about its progress, and errors that are reported here."""
    levels = {
        "alembic": logging.WARNING,
        "mlflow.store.db.utils": logging.CRITICAL,
        "urllib3.connectionpool": logging.ERROR,
    }
    if "MLFLOW_LOGGING_LEVEL" not in os.environ:
        levels["mlflow"] = logging.WARNING
    for name, level in levels.items():
        library = logging.getLogger(name)
        if name == "mlflow" or library.level == logging.NOTSET:
            library.setLevel(level)
