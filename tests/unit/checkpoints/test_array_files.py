from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from runner.checkpoints.formats.array_files import (
    NpyReader,
    NpzReader,
    SafetensorsReader,
)
from runner.checkpoints.formats.shards import ShardsReader
from runner.errors import CheckpointError


@pytest.mark.parametrize(
    "value",
    [
        np.array({"w": np.ones(3)}, dtype=object),
        np.zeros((), np.dtype([("good", "f4", (2,)), ("bad", "O")])),
    ],
    ids=["dict", "field"],
)
def test_an_array_of_objects_is_pickled_and_refused(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    np.save(path, value, allow_pickle=True)
    with pytest.raises(CheckpointError, match=r"holds pickled Python objects\n.*never loaded"):
        NpyReader(str(path)).spec()


def test_a_plain_array_is_called_like_its_file(tmp_path: Path) -> None:
    path = tmp_path / "embedding.npy"
    np.save(path, np.ones((4, 2), np.float16))
    reader = NpyReader(str(path))
    assert reader.spec().tensors["embedding"].shape == (4, 2)
    ((_, value),) = reader.read(["embedding"])
    assert type(value) is np.ndarray, "a copy in memory, not the memory map"


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


def test_an_array_with_bytes_to_spare_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.ones(3))
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        archive.writestr("t.npy", (tmp_path / "t.npy").read_bytes() + b"more")
    with pytest.raises(CheckpointError, match="t is longer than its shape"):
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


@pytest.mark.parametrize("dtype", ["bool", "uint32", "int8", "int64", "float16", "float64"])
def test_dtypes_have_numpys_names(dtype: str, tmp_path: Path) -> None:
    path = str(tmp_path / "m.safetensors")
    safetensors.numpy.save_file({"t": np.ones((2, 0, 3), dtype), "s": np.array(1, dtype)}, path)
    reader = SafetensorsReader(path)
    tensors = reader.spec().tensors
    assert (tensors["t"].dtype, tensors["t"].shape) == (dtype, (2, 0, 3))
    assert dict(reader.read(["s"]))["s"].dtype.name == dtype


def test_a_step_in_a_safetensors_file(tmp_path: Path) -> None:
    path = str(tmp_path / "m.safetensors")
    safetensors.numpy.save_file({"global_step": np.array(7), "w": np.ones(2)}, path)
    assert SafetensorsReader(path).spec().step == 7


def test_an_element_type_that_numpy_lacks_is_listed_and_not_read(tmp_path: Path) -> None:
    header = b'{"t":{"dtype":"F8_E8M0","shape":[2],"data_offsets":[0,2]}}'
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(2))
    reader = SafetensorsReader(str(path))
    assert reader.spec().tensors["t"].dtype == "f8_e8m0"
    with pytest.raises(CheckpointError, match="cannot be read as a safetensors file"):
        list(reader.read(["t"]))


def _write(folder: Path, weight_map: object, **shards: list[str]) -> ShardsReader:
    for shard, names in shards.items():
        tensors = {name: np.ones(2, np.float32) for name in names}
        safetensors.numpy.save_file(tensors, folder / f"{shard}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return ShardsReader(str(index))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    reader = _write(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}, one=["a"])
    with pytest.raises(CheckpointError, match=r"lacks 1 of its 2 shards\n.*two.safetensors"):
        reader.spec()


def test_all_disagreements_are_reported_at_once(tmp_path: Path) -> None:
    weight_map = {"a": "one.safetensors", "b": "one.safetensors"}
    reader = _write(tmp_path, weight_map, one=["a", "c"])
    message = r"only one of the two has b in one\.safetensors, c in one\.safetensors"
    with pytest.raises(CheckpointError, match=message):
        reader.spec()


@pytest.mark.parametrize("weight_map", [["a"], {"a": "../a.safetensors"}, {"a": 1}, {"a": ".."}])
def test_an_index_that_names_no_files_beside_it_is_refused(
    weight_map: object, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="cannot be read as an index of shards"):
        _write(tmp_path, weight_map).spec()


@pytest.mark.parametrize("content", ["{", "[]", "{}", "\x00"])
def test_a_damaged_index_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match="cannot be read as an index of shards"):
        ShardsReader(str(path)).spec()


def test_the_format_of_a_shard_is_told_by_its_content(tmp_path: Path) -> None:
    reader = _write(tmp_path, {"a": "one.bin"}, one=["a"])
    (tmp_path / "one.safetensors").rename(tmp_path / "one.bin")
    assert [value.tolist() for _, value in reader.read(["a"])] == [[1, 1]]
    for name, kind in (("model.safetensors.index.json", "index of shards"), ("w.npz", ".npz")):
        np.savez(tmp_path / "w.npz", w=np.ones(2))
        with pytest.raises(CheckpointError, match=f"cannot be read as a shard\n.*is a {kind}"):
            _write(tmp_path, {"a": name}).spec()
