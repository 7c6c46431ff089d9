"""Tracking URIs: checked, made absolute, and shown without their passwords."""

from __future__ import annotations

import os
import shlex
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from runner.config.command import called
from runner.config.masking import without_passwords
from runner.errors import TrackingUriError
from runner.internals.mlflow import unquotes_databases

DEFAULT_URI = "sqlite:///mlflow.db"

# Where `mlflow ui` serves by default.
_LOCAL_SERVER = "http://127.0.0.1:5000"
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
        """Whether the URI names an MLflow server."""
        return self.scheme in _SERVERS

    @property
    def exists(self) -> bool:
        """Whether the store may exist already; asking SQLite would create the database."""
        return self.database is None or self.database.exists()

    @property
    def shown(self) -> str:
        """The URI with `***` in place of a password."""
        return without_passwords(self.uri)

    def require_usable(self) -> None:
        """Raises a TrackingUriError if the URI names a file of something else."""
        if self.database is not None and (fault := _fault(self.database)):
            remedy = f"tracking.uri={DEFAULT_URI}"
            raise _refused(self.uri, f"{self.database} {fault}", remedy)

    def artifact_location(self, experiment: str) -> str | None:
        """Returns the location of a new experiment's artifacts; None for the store's default.

        It is beside an SQLite database, in `mlartifacts/EXPERIMENT`: MLflow's default would be
        `mlruns` in the current directory.
        """
        if self.database is None:
            return None
        return (self.database.parent / "mlartifacts" / quote(experiment, safe=" ")).as_uri()

    def page(self, run_id: str | None, experiment_id: str | None) -> str:
        """Returns the address of a run's page, on the server or where `open_command` serves.

        It is empty when the store has no such run, or has no pages.
        """
        if run_id is None or not (self.is_server or self.database):
            return ""
        server = self.shown if self.is_server else _LOCAL_SERVER
        run = f"experiments/{experiment_id}/runs/{run_id}"
        # Without the type, a browser that is new to MLflow shows the pages of GenAI, whatever the
        # kind of the experiment is.
        return f"{server}/#/{run}?workflowType=machine_learning"

    def open_command(self) -> str:
        """Returns the shell command that shows the stored runs, with passwords masked."""
        python = Path(sys.executable)
        if self.is_server:
            return f"{called(python, 'python')} -m webbrowser {shlex.quote(self.shown)}"
        mlflow = called(python.with_name("mlflow"), "mlflow")
        return f"{mlflow} ui --backend-store-uri {shlex.quote(self.shown)}"


def address_of(uri: str, directory: Path) -> Address:
    """Returns the address of a tracking URI; a relative SQLite path is relative to `directory`.

    Raises:
      TrackingUriError: the URI is malformed, or of a kind that MLflow does not offer.
    """
    scheme, separator, rest = uri.partition("://")
    scheme = scheme.lower().partition("+")[0]
    if scheme == "databricks":
        return Address(uri, scheme)
    if not separator or scheme == "file":
        remedy = f"sqlite:///{uri}" if uri.endswith(".db") else DEFAULT_URI
        raise _refused(
            uri, "it has no scheme, or names a plain directory", f"tracking.uri={remedy}"
        )
    if scheme in _SERVERS:
        return Address(uri.rstrip("/"), scheme)
    if scheme not in _DATABASES:
        raise _refused(uri, f"MLflow knows no scheme {scheme!r}", f"tracking.uri={DEFAULT_URI}")
    if scheme != "sqlite":
        return Address(uri, scheme)
    name, question, options = rest.removeprefix("/").partition("?")
    if not rest.startswith("/") or name in ("", ":memory:"):
        raise _refused(
            uri,
            "an SQLite URI names a file, after three slashes, or four before an absolute path",
            f"tracking.uri={DEFAULT_URI}",
        )
    quotes = unquotes_databases()
    database = Path(os.path.abspath(directory / (unquote(name) if quotes else name)))
    path = str(database)
    if quotes:
        path = path.replace("%", "%25").replace("?", "%3F")
    elif "?" in path:
        raise _refused(
            uri, f"{path} has a ?, which begins the options of a URI", "name another folder"
        )
    return Address(f"sqlite:///{path}{question}{options}", "sqlite", database)


def creation_marker(database: Path) -> Path:
    """Returns the file that lies beside an SQLite database while MLflow creates its tables."""
    return Path(f"{database}.creating")


def _fault(database: Path) -> str:
    """Returns why a file that exists can be no database of MLflow; empty if it may be one."""
    if database.is_dir():
        return "is a directory"
    # One that MLflow was creating, when a process was killed, is completed later.
    if not database.exists() or creation_marker(database).exists():
        return ""
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            tables = {name for (name,) in names}
    except sqlite3.OperationalError:
        return ""  # It may be locked; whoever opens it waits, and says so.
    except sqlite3.DatabaseError:
        return "is not an SQLite database"
    is_other = tables and "experiments" not in tables
    return "holds another application's tables and none of MLflow's" if is_other else ""


def _refused(uri: str, cause: str, remedy: str) -> TrackingUriError:
    state = f"tracking.uri={Address(uri, '').shown!r} cannot be used"
    return TrackingUriError.of(state, cause, remedy, _CHOICES)
