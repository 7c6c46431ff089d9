from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.checkpoints.numpy_files import NpyReader
from runner.errors import CheckpointError


def test_a_dict_is_pickled_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    np.save(path, np.array({"w": np.ones(3)}, dtype=object), allow_pickle=True)
    with pytest.raises(CheckpointError, match=r"holds pickled Python objects\n.*never loaded"):
        NpyReader(str(path)).spec()


def test_a_plain_array_is_called_like_its_file(tmp_path: Path) -> None:
    path = tmp_path / "embedding.npy"
    np.save(path, np.ones((4, 2), np.float16))
    reader = NpyReader(str(path))
    assert reader.spec().tensors["embedding"].shape == (4, 2)
    ((_, value),) = reader.read(["embedding"])
    assert type(value) is np.ndarray, "a copy in memory, not the memory map"


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    np.save(path, np.ones(100))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"cannot be read as an .npy file"):
        NpyReader(str(path)).spec()


def test_fields_of_objects_are_refused_by_name(tmp_path: Path) -> None:
    record = np.zeros((), np.dtype([("good", "f4", (2,)), ("bad", "O")]))
    np.save(tmp_path / "m.npy", record, allow_pickle=True)
    with pytest.raises(CheckpointError, match="holds pickled Python objects"):
        NpyReader(str(tmp_path / "m.npy")).spec()
