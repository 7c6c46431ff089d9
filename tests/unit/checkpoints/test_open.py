from __future__ import annotations

import gzip
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoints.open import Format, open_checkpoint, open_pinned, recognise
from runner.errors import CheckpointError
from tests.tiny.privileges import folder_for_all, without_privileges


def test_a_changed_file_is_not_the_one_that_was_pinned(tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    np.save(path, np.zeros(8))
    digest = open_checkpoint(str(path)).spec().digest
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"was pinned\n.*its digest is sha256.*{digest}"):
        open_checkpoint(str(path), digest)


def test_tensorflow_is_not_imported_for_files_that_do_without(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", w=np.ones(3))
    code = (
        "import sys\n"
        "from runner.checkpoints.locate import resolve\n"
        "from runner.checkpoints.open import open_checkpoint\n"
        "reader = open_checkpoint(resolve(sys.argv[1])[0])\n"
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


def test_one_path_is_opened_and_several_are_averaged(tmp_path: Path) -> None:
    paths = []
    for number in (1.0, 4.0):
        paths.append(str(tmp_path / f"{number}.npz"))
        np.savez(paths[-1], w=np.array([number]))
    for chosen, expected in ((paths[:1], 1.0), (paths, 2.5)):
        pinned = [(path, open_checkpoint(path).spec().digest) for path in chosen]
        ((_, value),) = open_pinned(pinned).read(["w"])
        assert value.tolist() == [expected]
    with pytest.raises(CheckpointError, match=r"1\.0\.npz is not the checkpoint that was pinned"):
        open_pinned([(paths[0], pinned[1][1])])


FOREIGN = [
    (b"", "it is empty: 0 bytes"),
    (b"<!DOCTYPE html><html>", "it is an HTML page, as a failed download leaves it"),
    (b"\n <html lang=en>", "it is an HTML page, as a failed download leaves it"),
    (b"<?xml version='1.0'?><Error/>", "it is XML, as a failed download leaves it"),
    (b"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer"),
    (gzip.compress(b"x", mtime=0), "it is compressed by gzip"),
    (b"BZh91AY", "it is compressed by bzip2"),
    (b"\xfd7zXZ\x00", "it is compressed by xz"),
    (pickle.dumps({"w": 1}), "it is pickled, and to load a pickle is to run"),
    (b'model_checkpoint_path: "m"', "it only names a checkpoint"),
    (b"PK\x03\x04 and no more", "it begins like a zip archive and is damaged"),
    (b'{"a": ', "it begins like JSON and is damaged"),
    (b'{"a": 1}', "it is JSON without a `weight_map`"),
    (b"just some text", "it begins with b'just som', like none of them"),
]


@pytest.mark.parametrize(("content", "cause"), FOREIGN)
@pytest.mark.parametrize("suffix", ["h5", "safetensors", "ckpt"])
def test_what_is_no_checkpoint_is_explained(
    content: bytes, cause: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"model.{suffix}"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a checkpoint of a known format") as caught:
        recognise(str(path))
    (problem,) = caught.value.problems
    assert cause in problem.cause
    assert problem.remedy
    assert ".safetensors" in problem.choices


@pytest.mark.parametrize(
    ("member", "cause"),
    [
        ("archive/data.pkl", "it is a PyTorch file"),
        ("notes.txt", "a zip archive of something else"),
    ],
)
def test_zip_archives_of_others_are_explained(member: str, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, b"x")
    with pytest.raises(CheckpointError, match=cause):
        recognise(str(path))


def test_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*/model"):
        recognise(str(tmp_path / "model"))


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(CheckpointError, match="is a directory, not a checkpoint"):
        recognise(str(tmp_path))


def test_parts_of_a_bundle_lead_to_its_prefix(tmp_path: Path) -> None:
    table = bytes(100) + bytes.fromhex("57fb808b247547db")
    (tmp_path / "m.index").write_bytes(table)
    shard = tmp_path / "m.data-00000-of-00001"
    shard.write_bytes(b"\x01\x02\x03")
    assert recognise(str(tmp_path / "m")) is Format.BUNDLE
    for part in (tmp_path / "m.index", shard):
        with pytest.raises(CheckpointError, match=f"give the prefix instead: {tmp_path}/m\n"):
            recognise(str(part))
    (tmp_path / "v1").write_bytes(table)
    assert recognise(str(tmp_path / "v1")) is Format.V1


def test_content_decides_and_not_the_suffix(tmp_path: Path) -> None:
    path = tmp_path / "weights.h5"
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    assert recognise(str(path)) is Format.NPY
    path.write_text(json.dumps({"weight_map": {}}))
    assert recognise(str(path)) is Format.SAFETENSORS_INDEX


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_missing_permissions_are_named(kind: str) -> None:
    with folder_for_all() as folder:
        closed = folder / "closed"
        closed.mkdir()
        path = closed / "model.npz"
        np.savez(path, w=np.ones(2))
        locked = path if kind == "file" else closed
        locked.chmod(0)
        message = "cannot be read\n.*Permission denied\n.*give this user the right"
        if kind == "folder":
            message = "there is no checkpoint at|Permission denied"
        with without_privileges(), pytest.raises(CheckpointError, match=message):
            recognise(str(path))
