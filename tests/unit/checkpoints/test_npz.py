from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoints.numpy_files import NpyReader, NpzReader
from runner.errors import CheckpointError


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def test_pickled_arrays_are_refused_and_never_run(tmp_path: Path) -> None:
    path, trace = tmp_path / "m.npz", tmp_path / "trace"
    np.savez(path, fine=np.ones(2), bomb=np.array([Bomb(trace)], dtype=object))
    with pytest.raises(CheckpointError, match=r"holds pickled Python objects in bomb\n.*run what"):
        NpzReader(str(path)).spec()
    with pytest.raises(CheckpointError, match=r"cannot be read as an .npz archive"):
        list(NpzReader(str(path)).read(["bomb"]))
    assert not trace.exists()


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, t=np.arange(1000.0))
    content = bytearray(path.read_bytes())
    content[4000] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"cannot be read as an .npz archive\n.*CRC"):
        list(NpzReader(str(path)).read(["t"]))


def test_an_array_with_bytes_to_spare_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.ones(3))
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        archive.writestr("t.npy", (tmp_path / "t.npy").read_bytes() + b"more")
    with pytest.raises(CheckpointError, match="t is longer than its shape says"):
        list(NpzReader(str(tmp_path / "m.npz")).read(["t"]))


def test_dtypes_and_a_step_that_is_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", words=np.array(["a", "bc"]), global_step=np.ones(3))
    spec = NpzReader(str(tmp_path / "m.npz")).spec()
    assert (spec.tensors["words"].dtype, spec.step) == ("string", None)


@pytest.mark.parametrize("reader", [NpzReader, NpyReader])
def test_values_of_the_other_byte_order_become_native(
    tmp_path: Path, reader: type[NpzReader | NpyReader]
) -> None:
    big = np.array([1.5, -2.0], ">f4")
    path = tmp_path / ("w.npz" if reader is NpzReader else "w.npy")
    np.savez(path, w=big) if reader is NpzReader else np.save(path, big)
    ((_, value),) = reader(str(path)).read(["w"])
    assert value.dtype.isnative
    np.testing.assert_array_equal(value, [1.5, -2.0])
