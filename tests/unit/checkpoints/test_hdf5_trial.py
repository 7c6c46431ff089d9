from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from runner.checkpoints import hdf5
from runner.checkpoints.hdf5_trial import examine


def test_a_sound_file_passes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["plain"] = np.ones(3)
        file.create_dataset("packed", data=np.ones(1000), compression="gzip")
    examine(str(tmp_path / "w.h5"))


def test_a_damaged_packed_dataset_is_met(tmp_path: Path) -> None:
    path = tmp_path / "w.h5"
    with h5py.File(path, "w") as file:
        packed = file.create_dataset("packed", data=np.arange(10_000), compression="gzip")
        offset = packed.id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[offset + 2 : offset + 40] = bytes(38)
    path.write_bytes(content)
    with pytest.raises(hdf5.READ_ERRORS, match=r"Can't|filter|inflate"):
        examine(str(path))
