"""The file of an SQLite store, opened by one process at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from runner.errors import Problem, TrackingError


@contextmanager
def exclusive(database: Path, lock_seconds: float = 120.0) -> Iterator[None]:
    """Holds the lock `DATABASE.lock` of a database that exists and can be read.

    A database whose creation inside the block was cut short is created anew.

    Two processes that create MLflow's tables at once would both fail, and MLflow tries for
    minutes to open what can never be opened: the lock and a first look prevent both.

    Args:
      database: the file; it and its directory are created when they do not exist.
      lock_seconds: how long to wait for the lock.

    Raises:
      TrackingError: another process kept the lock, or the file cannot be opened as a database.
    """
    state = f"the database {database} cannot be opened"
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{database}.lock", timeout=lock_seconds):
            # MLflow creates the tables over seconds. When that was cut short, nothing was recorded
            # yet, and what is there is of no use to it.
            creating = Path(f"{database}.creating")
            if creating.exists():
                for part in (database, Path(f"{database}-journal")):
                    part.unlink(missing_ok=True)
            if not database.exists():
                creating.touch()
            with closing(sqlite3.connect(database, timeout=20.0)) as connection:
                connection.execute("PRAGMA schema_version").fetchone()
            yield
            creating.unlink(missing_ok=True)
    except Timeout as error:
        raise TrackingError(
            Problem(
                state=state,
                cause=f"another process has held {error.lock_file} for {lock_seconds:g} seconds",
                remedy="wait until the other run has created the database, or stop it",
            )
        ) from error
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(
            Problem(
                state=state,
                cause=str(error),
                remedy="name a file that can be written, or an MLflow database: tracking.uri=...",
            )
        ) from error
