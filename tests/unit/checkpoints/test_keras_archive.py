from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from runner.checkpoints.keras_files import KerasArchiveReader
from runner.errors import CheckpointError


def test_an_archive_without_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
    with pytest.raises(CheckpointError, match=r"cannot be read as a .keras archive\n.*no item"):
        KerasArchiveReader(str(path)).spec()


def test_weights_of_another_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.weights.h5", "<html>")
    with pytest.raises(CheckpointError, match=r"cannot be read as a .keras archive"):
        KerasArchiveReader(str(path)).spec()
