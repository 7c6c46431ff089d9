"""Tracking URIs: checked, made absolute, and shown without their passwords."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from filelock import FileLock, Timeout

from runner.errors import Problem, TrackingError, TrackingUriError, nearest

DEFAULT_URI = "sqlite:///mlflow.db"

# File systems allow 255 bytes.
_MAX_FOLDER = 200
_SERVERS = ("http", "https")
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_CHOICES = ("sqlite:///mlflow.db", "http://HOST:PORT", "https://HOST", "postgresql://...", "none")


@dataclass(frozen=True)
class Address:
    """Where an MLflow store is.

    Attributes:
      uri: the tracking URI; the path of an SQLite database is absolute in it.
      scheme: its scheme without a driver, such as `sqlite` or `https`.
      database: the file of an SQLite store; None for any other.
    """

    uri: str
    scheme: str
    database: Path | None = None

    @property
    def is_server(self) -> bool:
        """Whether an MLflow server answers at the URI."""
        return self.scheme in _SERVERS

    @property
    def shown(self) -> str:
        """The URI with `***` in place of a password."""
        return self.masked(self.uri)

    def masked(self, text: str) -> str:
        """Returns `text` with `***` in place of this URI's password."""
        password = _password(self.uri)
        return text.replace(f":{password}@", ":***@") if password else text

    def artifact_location(self, experiment: str) -> str | None:
        """Returns where a new experiment keeps artifacts; None leaves it to the store.

        Beside an SQLite database, in `mlartifacts/EXPERIMENT`: MLflow's own default would be
        `mlruns` in whichever directory the program happens to run.
        """
        if self.database is None:
            return None
        folder = quote(experiment, safe=" ")
        if folder.startswith("."):
            folder = "%2E" + folder[1:]
        if len(folder) > _MAX_FOLDER:
            digest = hashlib.sha256(folder.encode()).hexdigest()[:12]
            folder = f"{folder[: _MAX_FOLDER - 13]}-{digest}"
        return (self.database.parent / "mlartifacts" / folder).as_uri()

    def open_command(self) -> str:
        """Returns the shell command that shows what is stored there; passwords masked."""
        if self.is_server:
            return f"{_python()} -m webbrowser {shlex.quote(self.shown)}"
        return f"{_mlflow()} ui --backend-store-uri {shlex.quote(self.shown)}"


def resolve(uri: str, directory: Path) -> Address:
    """Returns the address that a tracking URI means.

    Args:
      uri: an MLflow tracking URI.
      directory: what a relative SQLite path is relative to.

    Raises:
      TrackingUriError: the URI is malformed, or of a kind that MLflow does not offer.
    """
    scheme, separator, rest = uri.partition("://")
    scheme = scheme.lower().partition("+")[0]
    if scheme == "databricks":
        return Address(uri, scheme)
    if scheme == "file" or uri.startswith("file:"):
        raise _refused(
            uri,
            "MLflow refuses to record runs in plain directories",
            f"record into a database: tracking.uri={DEFAULT_URI}",
        )
    if not separator:
        raise _refused(
            uri,
            "it has no scheme, so it is a path where a URI is needed",
            f"tracking.uri={f'sqlite:///{uri}' if uri.endswith('.db') else DEFAULT_URI}",
        )
    if scheme in _SERVERS:
        return _server(uri, scheme)
    if scheme not in _DATABASES:
        raise _refused(
            uri,
            f"MLflow knows no scheme {scheme!r}",
            "give one of the schemes below",
            nearest(scheme, (*_SERVERS, *_DATABASES, "databricks"), count=7),
        )
    if scheme == "sqlite":
        return _sqlite(uri, rest, directory)
    return Address(uri, scheme)


def _server(uri: str, scheme: str) -> Address:
    try:
        parts = urlsplit(uri)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise _refused(uri, str(error), "write it as http://HOST:PORT") from error
    if not named:
        raise _refused(uri, "it names no host and port", "write it as http://HOST:PORT")
    return Address(uri.rstrip("/"), scheme)


def _sqlite(uri: str, rest: str, directory: Path) -> Address:
    if not rest.startswith("/"):
        raise _refused(
            uri,
            "an SQLite URI has three slashes before a path, four before an absolute one",
            f"tracking.uri=sqlite:///{rest or 'mlflow.db'}",
        )
    name, question, options = rest[1:].partition("?")
    if not name or name == ":memory:":
        raise _refused(
            uri,
            "a database in memory is gone when the process ends",
            f"name a file: tracking.uri={DEFAULT_URI}",
        )
    database = Path(os.path.abspath(directory / name))
    if "?" in str(database):
        raise _refused(
            uri,
            f"the path {database} holds a question mark, which begins the options of a URI",
            "keep the database in a directory without one in its name",
        )
    return Address(f"sqlite:///{database}{question}{options}", "sqlite", database)


def _refused(uri: str, cause: str, remedy: str, choices: tuple[str, ...] = ()) -> TrackingUriError:
    password = _password(uri)
    shown = uri.replace(f":{password}@", ":***@") if password else uri
    return TrackingUriError(
        Problem(
            state=f"tracking.uri={shown!r} cannot be used",
            cause=cause,
            remedy=remedy,
            choices=choices or _CHOICES,
        )
    )


def _password(uri: str) -> str | None:
    # Not urlsplit().password: it knows none in a malformed URI, and that is shown as well.
    scheme, _, rest = uri.partition("://")
    user, at, _ = rest.rpartition("@")
    return user.partition(":")[2] or None if at and not scheme.startswith("sqlite") else None


def _mlflow() -> str:
    """The `mlflow` command of this environment, as short as it still works from here."""
    beside = Path(sys.executable).with_name("mlflow")
    if not beside.exists():
        return f"{_python()} -m mlflow"
    found = shutil.which("mlflow")
    if found and Path(found) == beside:
        return "mlflow"
    return shlex.quote(_from_here(beside))


def _python() -> str:
    executable = Path(sys.executable)
    found = shutil.which("python")
    if found and Path(found) == executable:
        return "python"
    return shlex.quote(_from_here(executable))


def _from_here(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


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
