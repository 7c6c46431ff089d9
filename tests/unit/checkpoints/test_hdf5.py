from __future__ import annotations

from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

from runner.checkpoints import hdf5
from runner.checkpoints.open import open_checkpoint
from runner.errors import CheckpointError


def test_bfloat16_as_keras_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "w.h5"
    value = np.array([1.5, -2], ml_dtypes.bfloat16)
    with h5py.File(path, "w") as file:
        file.create_dataset("w", data=value.view("V2")).attrs["dtype"] = "bfloat16"
    reader = open_checkpoint(str(path))
    assert reader.spec().tensors["w"].dtype == "bfloat16"
    ((_, read),) = reader.read(["w"])
    assert read.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read, value)


def test_values_that_were_never_written_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file.create_dataset("w", shape=(4,), dtype="float32")
    with pytest.raises(CheckpointError, match="the values of /w were never written"):
        list(open_checkpoint(str(tmp_path / "w.h5")).read(["w"]))


def test_values_in_another_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(16))
    with h5py.File(tmp_path / "w.h5", "w") as file:
        outside = [(str(tmp_path / "secret"), 0, 16)]
        file.create_dataset("w", shape=(4,), dtype="float32", external=outside)
    with pytest.raises(CheckpointError, match="/w keeps its values in another file"):
        list(open_checkpoint(str(tmp_path / "w.h5")).read(["w"]))


def test_links_to_other_files_are_not_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["secret"] = np.ones(3)
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["w"] = np.ones(3)
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/")
    assert list(open_checkpoint(str(tmp_path / "w.h5")).spec().tensors) == ["w"]


def test_lists_in_parts_are_joined() -> None:
    attributes = {"names0": [b"a", b"b"], "names1": ["c"], "names3": ["not reached"]}
    assert hdf5.texts(attributes, "names") == ["a", "b", "c"]
    assert hdf5.texts({"names": ["x"]}, "names") == ["x"]
    assert hdf5.texts({}, "names") == []


@pytest.mark.parametrize("config", [None, b"{", '{"config": []}', "[]", '{"config": {"name": 3}}'])
def test_a_model_may_have_no_name(config: object) -> None:
    assert hdf5.root_name(config) is None


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.h5"
    with h5py.File(path, "w") as file:
        file["w"] = np.ones(1000)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"cannot be read as a Keras .h5 file\n.*truncated"):
        open_checkpoint(str(path))
