from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from filelock import FileLock

from runner.errors import TrackingError
from runner.tracking.address import exclusive


def test_the_file_and_its_directory_are_created(tmp_path: Path) -> None:
    database = tmp_path / "new folder" / "mlflow.db"
    with exclusive(database), closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_only_one_holds_it_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def enter() -> None:
        with exclusive(tmp_path / "mlflow.db"):
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_a_creation_that_was_cut_short_begins_anew(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"

    def create(table: str) -> list[tuple[str]]:
        with exclusive(database), closing(sqlite3.connect(database)) as connection:
            connection.execute(f"CREATE TABLE {table} (x)")
            connection.commit()
            if table == "half":
                raise KeyboardInterrupt
            return connection.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall()

    with pytest.raises(KeyboardInterrupt):
        create("half")
    assert create("one") == [("one",)]
    assert create("two") == [("one",), ("two",)], "what was completed stays"
    assert [path.name for path in tmp_path.glob("*.creating")] == []


def test_a_lock_that_is_kept_is_an_error(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    with (
        FileLock(f"{database}.lock"),
        pytest.raises(TrackingError, match=r"has held .*mlflow\.db\.lock for 0\.01 seconds"),
        exclusive(database, lock_seconds=0.01),
    ):
        pytest.fail("entered in spite of the lock")


def test_a_file_that_is_no_database_is_an_error_and_stays_as_it_was(tmp_path: Path) -> None:
    database = tmp_path / "notes.txt"
    database.write_text("these are notes, and quite a lot of them" * 100)
    before = database.read_bytes()
    with (
        pytest.raises(TrackingError, match=r"notes\.txt cannot be opened\n.*not a database"),
        exclusive(database),
    ):
        pytest.fail("entered with a text file")
    assert database.read_bytes() == before


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(TrackingError, match=r"mlflow\.db cannot be opened\n.*[Nn]ot a directory"),
        exclusive(tmp_path / "file" / "sub" / "mlflow.db"),
    ):
        pytest.fail("entered below a file")
