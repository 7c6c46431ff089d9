"""Checkpoints as mappings, and their differences."""

from __future__ import annotations

import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import runner


def test_a_checkpoint_is_a_mapping_whose_values_are_read_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    np.savez(path, allow_pickle=False, kernel=np.ones((2, 3), np.float32), step=np.int64(7))
    found = runner.open_checkpoint(path)
    assert list(found) == ["kernel", "step"]
    assert (found.tensors["kernel"].shape, found.tensors["kernel"].dtype) == ((2, 3), "float32")
    assert repr(found) == f"<NumPy archive {path}, 2 tensors>"
    np.testing.assert_array_equal(found["kernel"], np.ones((2, 3)))
    assert "kernle" not in found
    assert found.get("kernle") is None
    with pytest.raises(KeyError, match="nearest: kernel"):
        found["kernle"]
    path.unlink()  # A value that was not read is not in memory.
    with pytest.raises(runner.RunnerError):
        found["step"]


def test_differences_of_two_formats(tmp_path: Path) -> None:
    same, other = np.zeros(3, np.float32), np.array([0, 1, 0], np.float32)
    np.savez(tmp_path / "one.npz", allow_pickle=False, a=same, b=same)
    np.savez(tmp_path / "two.npz", allow_pickle=False, a=same, b=other, c=other)
    found = runner.checkpoints.diff(tmp_path / "one.npz", tmp_path / "two.npz")
    assert found.tensors == {"c": "only in the second", "b": "1 of 3 values, by up to 1"}
    assert "2 tensors differ" in str(found)
    one = runner.open_checkpoint(tmp_path / "one.npz")
    assert not runner.checkpoints.diff(one, one)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_weights_in_an_archive_are_read_whether_compressed_or_not(
    method: int, tmp_path: Path
) -> None:
    kernel = np.random.default_rng(0).normal(size=(64, 64))
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["layers/mine/vars/0"] = kernel
    with zipfile.ZipFile(tmp_path / "net.keras", "w", method) as archive:
        archive.writestr("config.json", "{}")
        archive.write(tmp_path / "w.h5", "model.weights.h5")
    found = runner.open_checkpoint(tmp_path / "net.keras")
    np.testing.assert_array_equal(found["layers/mine/vars/0"], kernel)
