from __future__ import annotations

import shlex
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from runner.config.masking import without_passwords
from runner.errors import TrackingUriError
from runner.internals.mlflow import unquotes_databases
from runner.tracking.address import DEFAULT_URI, Address, address_of

HERE = Path("/data/my runs")


@pytest.mark.parametrize(
    ("uri", "absolute", "database"),
    [
        (DEFAULT_URI, "sqlite:////data/my runs/mlflow.db", "/data/my runs/mlflow.db"),
        ("sqlite:///sub/../a.db", "sqlite:////data/my runs/a.db", "/data/my runs/a.db"),
        ("sqlite:////abs/a.db", "sqlite:////abs/a.db", "/abs/a.db"),
        ("sqlite:///a.db?timeout=3", "sqlite:////data/my runs/a.db?timeout=3", HERE / "a.db"),
        ("sqlite+pysqlite:///a.db", "sqlite:////data/my runs/a.db", HERE / "a.db"),
    ],
)
def test_sqlite_paths_become_absolute(uri: str, absolute: str, database: str | Path) -> None:
    assert address_of(uri, HERE) == Address(absolute, "sqlite", Path(database))


@pytest.mark.parametrize("folder", ["a%41b", "a b", "what?", "a#b", "[1]*", "it's", "a=b", "größe"])
def test_the_path_of_a_database_is_quoted(folder: str) -> None:
    directory = Path("/data") / folder
    if "?" in folder and not unquotes_databases():
        with pytest.raises(TrackingUriError, match="begins the options of a URI"):
            address_of(DEFAULT_URI, directory)
        return
    address = address_of(DEFAULT_URI, directory)
    assert address.database == directory / "mlflow.db"
    assert sqlalchemy.make_url(address.uri).database == str(directory / "mlflow.db")
    assert address_of(address.uri, Path("/elsewhere")) == address


@pytest.mark.parametrize(
    ("uri", "kept", "scheme"),
    [
        ("http://localhost:5000/", "http://localhost:5000", "http"),
        ("HTTPS://mlflow.example.org", "HTTPS://mlflow.example.org", "https"),
        ("postgresql+psycopg2://u@db/x", "postgresql+psycopg2://u@db/x", "postgresql"),
        ("databricks", "databricks", "databricks"),
        ("databricks://profile", "databricks://profile", "databricks"),
    ],
)
def test_other_uris_are_kept(uri: str, kept: str, scheme: str) -> None:
    address = address_of(uri, HERE)
    assert address == Address(kept, scheme)
    assert address.artifact_location("digits") is None
    assert address.is_server == scheme.startswith("http")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("file:mlruns", r"plain directory\n.*tracking\.uri=sqlite:///mlflow\.db"),
        ("mlruns", r"no scheme.*\n.*tracking\.uri=sqlite:///mlflow\.db"),
        ("results/a.db", r"no scheme.*\n.*tracking\.uri=sqlite:///results/a\.db"),
        ("/abs/a.db", r"tracking\.uri=sqlite:////abs/a\.db"),
        ("localhost:5000", r"no scheme(.*\n)+.*choices: .*http://HOST:PORT"),
        ("sqlit:///a.db", r"no scheme 'sqlit'(.*\n)+.*choices: sqlite"),
        ("sqlite://a.db", "three slashes"),
        ("sqlite://", r"three slashes.*\n.*tracking\.uri=sqlite:///mlflow\.db"),
        ("sqlite:///", "names a file"),
        ("sqlite:///:memory:", "names a file"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_remedy(uri: str, message: str) -> None:
    with pytest.raises(TrackingUriError, match=message) as raised:
        address_of(uri, HERE)
    assert f"tracking.uri={uri!r} cannot be used" in str(raised.value)
    assert raised.value.problems[0].choices


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://me:s3cret@db/x",
        "http://me:s3cret@host:5000",
        "mysql://me:s3/c:r@et@db/x",
        "https://s3cret@host",
    ],
)
def test_passwords_are_not_shown(uri: str) -> None:
    address = address_of(uri, HERE)
    assert "***" in address.shown
    for text in (address.shown, address.open_command(), without_passwords(f"cannot reach {uri}")):
        assert "s3" not in text
        assert "et@" not in text
    with pytest.raises(TrackingUriError, match=r"me:\*\*\*@db(.*\n)*.*knows no scheme 'oracle'"):
        address_of("oracle://me:s3cret@db/x", HERE)


@pytest.mark.parametrize("kind", ["text", "folder", "optuna"])
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(kind: str, tmp_path: Path) -> None:
    database = tmp_path / "my notes.db"
    if kind == "text":
        database.write_text("Not a database, but a file with some notes of a user's.\n")
    elif kind == "folder":
        database.mkdir()
    else:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE trials (number INTEGER)")
            connection.commit()
    before = None if kind == "folder" else database.read_bytes()
    causes = {
        "text": "not an SQLite database",
        "folder": "a directory",
        "optuna": "another application",
    }
    with pytest.raises(TrackingUriError, match=causes[kind]):
        address_of("sqlite:///my notes.db", tmp_path).require_usable()
    assert [*tmp_path.iterdir()] == [database]
    assert before is None or database.read_bytes() == before


def test_artifacts_go_beside_the_database_in_a_folder_for_each_experiment() -> None:
    address = address_of(DEFAULT_URI, HERE)
    assert address.artifact_location("digits") == "file:///data/my%20runs/mlartifacts/digits"
    names = ["digits", "a/b", "a%2Fb", "größe 1"]
    locations = [address.artifact_location(name) or "" for name in names]
    assert len(set(locations)) == len(names)
    for location in locations:
        folder = location.removeprefix("file:///data/my%20runs/mlartifacts/")
        assert "/" not in folder


def test_the_command_that_opens_a_store_survives_a_shell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "my env/bin/python"))
    (tmp_path / "my env/bin").mkdir(parents=True)
    (tmp_path / "my env/bin/mlflow").touch(mode=0o755)
    database_uri = "sqlite:////data/my runs/mlflow.db"
    arguments = ["ui", "--backend-store-uri", database_uri]
    address = address_of(DEFAULT_URI, HERE)

    monkeypatch.setenv("PATH", "")
    elsewhere = shlex.split(address.open_command())
    assert elsewhere == [str(tmp_path / "my env/bin/mlflow"), *arguments]
    page = shlex.split(address_of("http://host:5000", HERE).open_command())
    assert page == [str(tmp_path / "my env/bin/python"), "-m", "webbrowser", "http://host:5000"]

    monkeypatch.chdir(tmp_path)
    assert shlex.split(address.open_command()) == ["my env/bin/mlflow", *arguments]

    monkeypatch.setenv("PATH", str(tmp_path / "my env/bin"))
    assert shlex.split(address.open_command()) == ["mlflow", *arguments]
