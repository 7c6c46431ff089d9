"""Unpacks an archive that `make.py` has made, in whatever place."""

from __future__ import annotations

import hashlib
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RECORDED = Path("/var/tmp/recorded-runs")
"""The folder of all that is recorded, whose path is in many of the files."""

_ARTIFACTS = (("experiments", "artifact_location"), ("runs", "artifact_uri"))


def unpack_archive(archive: Path, folder: Path, *, moved: bool) -> Path:
    """Unpacks into a new folder, and returns it.

    The files then look as if they had been recorded there: the paths in them are exchanged, and the
    names of folders that come from the database's address. Not in journals, whose lines have
    checksums: all that they name by a path is the source of a run that is delivered.

    `folder` must need no quoting. With `moved` they are left as they were in the former place, but
    for the places of artifacts in MLflow's database, where MLflow would otherwise write.
    """
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    old, new = str(RECORDED), str(folder)
    columns = _ARTIFACTS if moved else (*_ARTIFACTS, ("tags", "value"))
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection, connection:
        for table, column in columns:
            change = f"UPDATE {table} SET {column} = replace({column}, ?, ?)"
            connection.execute(change, (old, new))
    if not moved:
        for kind in ("*.json", "*.txt", "*.html"):
            for file in folder.rglob(kind):
                text = file.read_text()
                # The time of the others stays: the owner of a run might live if it was of late.
                if old in text:
                    file.write_text(text.replace(old, new))
        for store in list(folder.rglob(_store(old))):
            store.rename(store.with_name(_store(new)))
    return folder


def _store(folder: str) -> str:
    """Returns the name of the folders with what was delivered to the database in a folder."""
    address = f"sqlite:///{folder}/mlflow.db"
    return f"sqlite-{hashlib.sha256(address.encode()).hexdigest()[:8]}"
