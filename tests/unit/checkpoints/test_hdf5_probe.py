from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from runner.checkpoints import hdf5
from runner.errors import CheckpointError


def _file(folder: Path) -> str:
    path = folder / "w.h5"
    with h5py.File(path, "w") as file:
        file["w"] = np.ones(3)
    return str(path)


def test_a_sound_file_is_harmless(tmp_path: Path) -> None:
    hdf5.require_harmless(_file(tmp_path), "an HDF5 file")


def test_a_damaged_file_that_only_raises_is_left_to_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "w.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n and no more")
    hdf5.require_harmless(str(path), "an HDF5 file")


@pytest.mark.parametrize(
    ("death", "message"),
    [("SIGSEGV", "crashed with SIGSEGV"), ("SIGXCPU", "ran without end")],
)
def test_a_file_that_the_library_does_not_survive_is_refused(
    death: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A library that dies on every file; real files that kill one depend on its version.
    (tmp_path / "h5py.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.{death})\n")
    path = _file(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(CheckpointError, match=f"the HDF5 library {message} on it"):
        hdf5.require_harmless(path, "an HDF5 file")


def test_endless_work_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "h5py.py").write_text(
        "import sys\nclass Group: pass\nFile = Dataset = Group\n"
        "def File(*arguments):\n    while True: pass\n"
    )
    path = _file(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(hdf5, "CPU_SECONDS", 1)
    with pytest.raises(CheckpointError, match="ran without end"):
        hdf5.require_harmless(path, "an HDF5 file")


def test_a_probe_that_fails_itself_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "h5py.py").write_text("raise ZeroDivisionError\n")
    path = _file(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(RuntimeError, match=r"hdf5_trial failed:\n(.*\n)*ZeroDivisionError"):
        hdf5.require_harmless(path, "an HDF5 file")
