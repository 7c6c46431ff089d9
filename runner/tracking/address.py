"""Tracking URIs: checked, made absolute, and shown without their passwords."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from runner.config.spelling import called
from runner.errors import Problem, TrackingUriError, nearest

DEFAULT_URI = "sqlite:///mlflow.db"

_SERVERS = ("http", "https")
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
# How every SQLite database begins: https://www.sqlite.org/fileformat.html
_SQLITE_HEAD = b"SQLite format 3\0"
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
    def exists(self) -> bool:
        """Whether there may be something to find: asking SQLite would create a database."""
        return self.database is None or self.database.exists()

    @property
    def shown(self) -> str:
        """The URI with `***` in place of a password."""
        return self.masked(self.uri)

    def masked(self, text: str) -> str:
        """Returns `text` with `***` in place of this URI's password."""
        password = _password(self.uri)
        return text.replace(f":{password}@", ":***@") if password else text

    def artifact_location(self, experiment: str) -> str | None:
        """Returns where a new experiment keeps artifacts; None for the store's default.

        Beside an SQLite database, in `mlartifacts/EXPERIMENT`: MLflow's own default would be
        `mlruns` in the current directory.
        """
        if self.database is None:
            return None
        return (self.database.parent / "mlartifacts" / quote(experiment, safe=" ")).as_uri()

    def open_command(self) -> str:
        """Returns the shell command that shows what is stored there; passwords masked."""
        python = Path(sys.executable)
        if self.is_server:
            return f"{called(python, 'python')} -m webbrowser {shlex.quote(self.shown)}"
        mlflow = called(python.with_name("mlflow"), "mlflow")
        return f"{mlflow} ui --backend-store-uri {shlex.quote(self.shown)}"


def resolve(uri: str, directory: Path) -> Address:
    """Returns the address of a tracking URI; a relative SQLite path is relative to `directory`.

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
    if database.is_file() and _is_foreign(database):
        raise _refused(
            uri, f"{database} is not a database", f"name another file: tracking.uri={DEFAULT_URI}"
        )
    return Address(f"sqlite:///{database}{question}{options}", "sqlite", database)


def _is_foreign(file: Path) -> bool:
    """Whether a file holds something other than an SQLite database; a new one may be empty."""
    with file.open("rb") as stream:
        head = stream.read(len(_SQLITE_HEAD))
    return head not in (b"", _SQLITE_HEAD)


def _refused(uri: str, cause: str, remedy: str, choices: tuple[str, ...] = ()) -> TrackingUriError:
    return TrackingUriError(
        Problem(
            state=f"tracking.uri={Address(uri, '').shown!r} cannot be used",
            cause=cause,
            remedy=remedy,
            choices=choices or _CHOICES,
        )
    )


def _password(uri: str) -> str | None:
    # Not urlsplit().password: malformed URIs are shown as well.
    scheme, _, rest = uri.partition("://")
    user, at, _ = rest.rpartition("@")
    return user.partition(":")[2] or None if at and not scheme.startswith("sqlite") else None
