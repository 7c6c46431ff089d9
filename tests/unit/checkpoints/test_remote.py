"""Checkpoints on a web server, and in a store of fsspec that has directories."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import safetensors.numpy

from runner.checkpoints import files
from runner.checkpoints.locate import checkpoint_paths
from runner.checkpoints.open import open_reader
from runner.errors import CheckpointError
from tests.conformance.goldens import MAKERS, make, relocated, save_bundle
from tests.support.web import served

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that `address` serves."""
    (tmp_path / "served").mkdir()
    return tmp_path / "served"


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    with served(folder) as address:
        yield address


@pytest.fixture
def store() -> Iterator[Any]:
    memory = fsspec.filesystem("memory")
    yield memory
    memory.rm("/", recursive=True)


def upload(store: Any, folder: Path, target: str) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            store.pipe_file(f"{target}/{file.relative_to(folder)}", file.read_bytes())


@pytest.mark.parametrize("name", MAKERS)
def test_every_format_is_read_from_a_store(name: str, tmp_path: Path, store: Any) -> None:
    golden = make(name, tmp_path / "local")
    upload(store, tmp_path / "local", "/bucket")
    path = relocated(golden, tmp_path / "local", "memory://bucket")
    here, there = open_reader(golden.path), open_reader(*checkpoint_paths(path))
    assert list(there.spec().tensors) == list(here.spec().tensors)
    assert there.spec().path.startswith("memory://bucket")
    assert there.spec().digest == here.spec().digest
    names = list(here.spec().tensors)
    for (_, expected), (_, value) in zip(here.read(names), there.read(names), strict=True):
        assert value.tobytes() == expected.tobytes()
    open_reader(path, here.spec().digest)
    with pytest.raises(CheckpointError, match=r"memory://.* is not the checkpoint that was pinned"):
        open_reader(path, "sha256:0")


def test_a_directory_in_a_store_has_a_newest_checkpoint(tmp_path: Path, store: Any) -> None:
    for step in (1, 2):
        save_bundle(tmp_path / f"m-{step}", {"t": [float(step)]})
    state = 'model_checkpoint_path: "m-2"\nall_model_checkpoint_paths: "m-1"\n'
    (tmp_path / "checkpoint").write_text(state)
    upload(store, tmp_path, "/run")
    assert checkpoint_paths("memory://run") == ["memory://run/m-2"]
    assert checkpoint_paths("memory://run", "1") == ["memory://run/m-1"]
    with pytest.raises(CheckpointError, match=r"choices: memory://run/m-[12]"):
        checkpoint_paths("memory://run/m-3")


def test_a_web_server_is_read_once_until_a_file_changes(
    folder: Path, address: str, cache: Path
) -> None:
    for value in (1.0, 22.0):
        file = folder / "model.safetensors"
        safetensors.numpy.save_file({"w": np.full(3, value, np.float32)}, file)
        os.utime(file, (value, value))
        path = f"{address}/model.safetensors"
        reader = open_reader(*checkpoint_paths(path))
        assert (reader.spec().path, reader.spec().digest) == (path, files.digest_of_file(str(file)))
        ((_, read),) = open_reader(path).read(["w"])
        assert read.tolist() == [value] * 3
    assert len([copy for copy in cache.iterdir() if copy.is_dir()]) == 2
    Path(files.local_copy(path)).write_bytes(b"damaged in the cache")
    with pytest.raises(CheckpointError, match=f"{path} is not a checkpoint"):
        open_reader(path).spec()


def test_the_mapping_of_a_pytorch_file_is_named(folder: Path, address: str) -> None:
    shutil.copy(DATA / "torch" / "lightning-2.15.pt", folder / "last.ckpt")
    for path in ("last.ckpt", "last.ckpt?download=true"):
        for suffix in ("", "#state_dict"):
            spec = open_reader(*checkpoint_paths(f"{address}/{path}{suffix}")).spec()
            assert (spec.path, spec.step) == (f"{address}/{path}#state_dict", 120)
    with pytest.raises(CheckpointError, match=f"{address}/last.ckpt holds no tensors in 'other'"):
        open_reader(f"{address}/last.ckpt#other").spec()


def test_shards_and_a_bundle_are_found_beside_their_index(folder: Path, address: str) -> None:
    shard = "model-00001-of-00001.safetensors"
    safetensors.numpy.save_file({"w": np.ones(3, np.float32)}, folder / shard)
    index = {"weight_map": {"w": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    ((_, value),) = open_reader(f"{address}/model.safetensors.index.json").read(["w"])
    assert value.tolist() == [1, 1, 1]
    save_bundle(folder / "model.ckpt-7", {"t": [2.0]})
    ((_, value),) = open_reader(*checkpoint_paths(f"{address}/model.ckpt-7")).read(["t"])
    assert value.tolist() == [2]
    (folder / shard).unlink()
    with pytest.raises(CheckpointError, match=f"lacks 1 of its 1 shards\n.*{address}/{shard}"):
        open_reader(f"{address}/model.safetensors.index.json").spec()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{}/nothing.pt", "there is no checkpoint at {}/nothing.pt\n  cause: 404"),
        ("{}/private/x.pt", "there is no checkpoint at {}/private/x.pt\n  cause: 403"),
        ("memory://b/x.pt", "there is no checkpoint at memory://b/x.pt\n  cause: neither a"),
        ("http://127.0.0.1:1/x.pt", "cannot be read\n  cause: .*Cannot connect to host"),
        ("foo://x.pt", "foo://x.pt cannot be opened\n.*Protocol not known: foo"),
        ("https:/h/x.pt", "there is no checkpoint at .*\n.*two slashes\n.*\n.*https://h/x.pt"),
        ("s3://b/x.pt", "s3://b/x.pt cannot be opened\n.*Install s3fs"),
        ("gs://b/model", "gs://b/model cannot be opened\n.*install gcsfs"),
    ],
)
def test_what_cannot_be_opened_is_an_error_with_the_reason(
    path: str, message: str, address: str
) -> None:
    with pytest.raises(CheckpointError, match=message.format(address)):
        checkpoint_paths(path.format(address))


@pytest.mark.parametrize("missing", ["fsspec", "aiohttp"])
def test_a_missing_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(CheckpointError, match=r"https://h/x.pt.*\n.*\n.*runner\[remote\]"):
        checkpoint_paths("https://h/x.pt")
