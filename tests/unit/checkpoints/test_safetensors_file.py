from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from runner.checkpoints.safetensors_files import SafetensorsReader
from runner.errors import CheckpointError

DTYPES = ["bool", "uint8", "uint32", "int8", "int16", "int64", "float16", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_have_numpys_names(dtype: str, tmp_path: Path) -> None:
    path = str(tmp_path / "m.safetensors")
    safetensors.numpy.save_file({"t": np.ones((2, 0, 3), dtype), "s": np.array(1, dtype)}, path)
    reader = SafetensorsReader(path)
    tensors = reader.spec().tensors
    assert (tensors["t"].dtype, tensors["t"].shape) == (dtype, (2, 0, 3))
    assert dict(reader.read(["s"]))["s"].dtype.name == dtype


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file({"t": np.ones(100)}, path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="cannot be read as a safetensors file"):
        SafetensorsReader(str(path)).spec()


def test_an_element_type_that_numpy_lacks_is_listed_and_not_read(tmp_path: Path) -> None:
    header = b'{"t":{"dtype":"F8_E8M0","shape":[2],"data_offsets":[0,2]}}'
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(2))
    reader = SafetensorsReader(str(path))
    assert reader.spec().tensors["t"].dtype == "f8_e8m0"
    with pytest.raises(CheckpointError, match="cannot be read as a safetensors file"):
        list(reader.read(["t"]))
