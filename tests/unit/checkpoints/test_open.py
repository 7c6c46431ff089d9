from __future__ import annotations

import gzip
import io
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from runner.checkpoints.formats.array_files import NpzReader
from runner.checkpoints.locate import checkpoint_paths
from runner.checkpoints.open import AverageReader, open_pinned, open_reader
from runner.checkpoints.recognition import Format, recognise
from runner.errors import CheckpointError
from tests.conformance.goldens import save_npz
from tests.support.privileges import folder_for_all, without_privileges


def test_tensorflow_is_not_imported_for_files_that_do_without(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", w=np.ones(3))
    code = (
        "import sys\n"
        "from runner.checkpoints.locate import checkpoint_paths\n"
        "from runner.checkpoints.open import open_reader\n"
        "reader = open_reader(checkpoint_paths(sys.argv[1])[0])\n"
        "print(dict(reader.read(['w'])))\n"
        "print(sorted({'tensorflow', 'h5py', 'keras', 'mlflow'} & {*sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.npz")],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def _readers(folder: Path, *contents: dict[str, object]) -> list[NpzReader]:
    paths = [save_npz(folder / f"{at}.npz", **content) for at, content in enumerate(contents)]
    return [NpzReader(path) for path in paths]


def test_one_path_is_opened_and_several_are_averaged(tmp_path: Path) -> None:
    paths = [reader.path for reader in _readers(tmp_path, {"w": [1.0]}, {"w": [4.0]})]
    for chosen, expected in ((paths[:1], 1.0), (paths, 2.5)):
        pinned = [(path, open_reader(path).spec().digest) for path in chosen]
        ((_, value),) = open_pinned(pinned).read(["w"])
        assert value.tolist() == [expected]
    with pytest.raises(CheckpointError, match=r"0\.npz is not the checkpoint that was pinned"):
        open_pinned([(paths[0], pinned[1][1])])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([np.float32(value) for value in (1e8, 1, -1e8, 2)], np.float32(0.75)),  # In float64.
        ([np.float16(57344), np.float16(40960)], np.float16(49152)),  # Without overflow.
        ([np.complex64(2 + 4j), np.complex64(4)], np.complex64(3 + 2j)),
        ([np.int64(10), np.int64(30)], np.int64(30)),
        ([True, False], np.bool_(False)),
        (["a", "b"], np.str_("b")),
    ],
)
def test_the_mean_of_numbers_with_a_point_and_else_the_last(
    values: list[object], expected: np.generic, tmp_path: Path
) -> None:
    reader = AverageReader(_readers(tmp_path, *({"t": value} for value in values)))
    ((_, value),) = reader.read(["t"])
    assert (value.dtype, value.item()) == (expected.dtype, expected.item())


def test_what_has_no_mean_may_differ_in_everything(tmp_path: Path) -> None:
    first = {"w": 1.0, "global_step": np.int32(3), "state": ["a", "b"], "gone": 7}
    last = {"w": 4.0, "global_step": np.int64(5), "state": ["c"], "new": True}
    readers = _readers(tmp_path, first, last)
    reader = AverageReader(readers)
    spec = reader.spec()
    assert sorted(spec.tensors) == ["global_step", "new", "state", "w"]
    assert (spec.step, spec.format) == (5, "average of 2 x NumPy archive")
    assert all(reader.path in spec.path for reader in readers)
    assert spec.digest != AverageReader(readers[::-1]).spec().digest
    names = ["state", "w", "new", "global_step"]
    values = [(name, value.tolist()) for name, value in reader.read(names)]
    assert values == list(zip(names, [["c"], 2.5, True, 5], strict=True))
    with pytest.raises(CheckpointError, match="holds no tensor 'gone'"):
        list(reader.read(["w", "gone"]))


def test_checkpoints_of_different_models_are_not_averaged(tmp_path: Path) -> None:
    one = {"a": np.array([1], np.float32), "b": np.array([1, 2], np.float32), "c": 1.0}
    other = {"a": np.array([1], np.float64), "b": np.array([1], np.float32)}
    message = "cannot be averaged\n.*differ in the presence, shape or dtype of a, b, c\n"
    with pytest.raises(CheckpointError, match=message):
        AverageReader(_readers(tmp_path, one, other)).spec()


def _zip(member: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(member, b"x")
    return content.getvalue()


FOREIGN = [
    (b"", "it is empty: 0 bytes"),
    (b"<!DOCTYPE html><html>", "it is HTML or XML, as a failed download leaves it"),
    (b"\n <html lang=en>", "it is HTML or XML, as a failed download leaves it"),
    (b"<?xml version='1.0'?><Error/>", "it is HTML or XML, as a failed download leaves it"),
    (b"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer"),
    (gzip.compress(b"x", mtime=0), "it is compressed by gzip"),
    (b"BZh91AY", "it is compressed by gzip, bzip2 or xz"),
    (b"\xfd7zXZ\x00", "it is compressed by gzip, bzip2 or xz"),
    (pickle.dumps({"w": 1}), "it is pickled, and not by torch.save"),
    (b"PK\x03\x04 and no more", "it begins like a zip archive and cannot be read"),
    (b'{"a": ', "it begins like JSON and is damaged"),
    (b'{"a": 1}', "it is JSON without a `weight_map`"),
    (_zip("notes.txt"), "a zip archive of something else"),
    (b"\x1c\x00\x00\x00TFL3" + bytes(8), "it is a TFLite model: its layers are fused"),
    (b"just some text", "it begins with b'just som', like none of them"),
]


@pytest.mark.parametrize(("content", "cause"), FOREIGN)
def test_what_is_no_checkpoint_is_explained(content: bytes, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a checkpoint of a known format") as caught:
        recognise(str(path))
    (problem,) = caught.value.problems
    assert cause in problem.cause
    assert problem.remedy
    assert ".safetensors" in problem.choices


def test_onnx_is_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x09\x12\x07pytorch")
    with pytest.raises(CheckpointError, match=r"ONNX model.*\n.*it was exported from"):
        recognise(str(tmp_path / "m.onnx"))


def test_parts_of_a_bundle_lead_to_its_prefix(tmp_path: Path) -> None:
    table = bytes(100) + bytes.fromhex("57fb808b247547db")
    (tmp_path / "m.index").write_bytes(table)
    shard = tmp_path / "m.data-00000-of-00001"
    shard.write_bytes(b"\x01\x02\x03")
    assert recognise(str(tmp_path / "m")) is Format.BUNDLE
    graph = tmp_path / "m.meta"
    graph.write_bytes(b"\n\xe0\x0b")
    for part in (tmp_path / "m.index", shard, graph):
        with pytest.raises(CheckpointError, match=f"give the prefix instead: {tmp_path}/m\n"):
            recognise(str(part))
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01")
    with pytest.raises(CheckpointError, match=f"give its folder: {tmp_path}/\n"):
        recognise(str(tmp_path / "saved_model.pb"))
    (tmp_path / "saved_model.pb").unlink()
    (tmp_path / "v1").write_bytes(table)
    assert recognise(str(tmp_path / "v1")) is Format.V1
    with pytest.raises(CheckpointError, match="it is a directory, neither a SavedModel"):
        recognise(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*/model"):
        recognise(str(tmp_path / "model"))


def test_missing_permissions_are_named() -> None:
    with folder_for_all() as folder:
        path = folder / "model.npz"
        np.savez(path, w=np.ones(2))
        path.chmod(0)
        message = "cannot be read\n.*Permission denied\n.*give this user the right"
        with without_privileges(), pytest.raises(CheckpointError, match=message):
            recognise(str(path))


# What the folder of a checkpoint, and its file, may be called; `p` is a folder too.
NAMES = ["p#1", "a #b", "[1]*?", "it's", "a%41", "a=b", "größe🙂", "-lead", "tail.", " x ", "a\nb"]
NAMES += ["x" * 190, "\\n", "~t", "${x}", "a,b", "{a}"]


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_and_its_folder_may_have_any_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    folder = tmp_path / name
    folder.mkdir()
    np.savez(folder / f"{name}.npz", kernel=np.ones(3))
    prefix = folder / "runs" / f"{name}.ckpt-7"
    prefix.parent.mkdir()
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=["kernel"], shape_and_slices=[""], tensors=[tf.ones(3)]
    )
    for place in (folder / f"{name}.npz", prefix, prefix.parent):
        (path,) = checkpoint_paths(str(place))
        ((_, value),) = open_reader(path).read(["kernel"])
        assert value.tolist() == [1.0] * 3
