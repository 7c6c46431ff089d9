from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import safetensors.numpy
from huggingface_hub import constants

from runner.checkpoints.locate import checkpoint_paths
from runner.checkpoints.open import open_reader
from runner.errors import CheckpointError
from tests.support import torch_files

COMMIT, OLDER = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two commits of one repository, of which `main` is the first."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "models--org--net"
    for commit, value in ((COMMIT, 1.0), (OLDER, 0.0)):
        blob = folder / "blobs" / commit
        blob.parent.mkdir(parents=True, exist_ok=True)
        safetensors.numpy.save_file({"w": np.full(3, value, np.float32)}, blob)
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "model.safetensors").symlink_to(blob)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return tmp_path


def test_an_address_may_name_a_mapping_in_its_file(cache: Path) -> None:
    torch_files.save_arrays(
        cache / "models--org--net" / "snapshots" / COMMIT / "m.ckpt",
        {"w": np.zeros(3, "f4")},
        step=1,
    )
    (path,) = checkpoint_paths("hf://org/net/m.ckpt#state_dict")
    assert open_reader(path).spec().path.endswith(f"{COMMIT}/m.ckpt#state_dict")


@pytest.mark.parametrize(
    ("address", "commit"),
    [
        ("hf://org/net", COMMIT),
        ("hf://org/net@main", COMMIT),
        ("hf://org/net/model.safetensors", COMMIT),
        (f"hf://org/net@{OLDER}", OLDER),
        (f"hf://org/net@{OLDER}/model.safetensors", OLDER),
    ],
)
def test_an_address_is_resolved_to_its_commit(address: str, commit: str, cache: Path) -> None:
    expected = cache / "models--org--net" / "snapshots" / commit / "model.safetensors"
    assert checkpoint_paths(address) == [str(expected)]
    ((_, value),) = open_reader(str(expected)).read(["w"])
    assert value.tolist() == [float(commit == COMMIT)] * 3


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://org/nett", "choices: hf://org/net"),
        ("hf://org/net@v2", f"no such file of the commits .*{COMMIT}"),
        ("hf://org/net/other.bin", "hf download org/net"),
        ("hf://net", "it has the form hf://ORG/REPO"),
        ("hf://org/net/../../secret", "it has the form hf://ORG/REPO"),
    ],
)
def test_what_is_not_cached_is_an_error_with_the_way_out(
    address: str, message: str, cache: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        checkpoint_paths(address)


class Hub(BaseHTTPRequestHandler):
    """The parts of the Hub's interface that downloading uses, for one repository."""

    files: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        name = self.path.split("?")[0].rpartition("/")[2]
        if self.path.startswith("/api/models/org/net"):
            tree = [
                {"type": "file", "path": path, "size": len(content), "oid": path}
                for path, content in self.files.items()
            ]
            siblings = [{"rfilename": path} for path in self.files]
            document = {"id": "org/net", "modelId": "org/net", "sha": COMMIT, "siblings": siblings}
            self._send(json.dumps(tree if "/tree/" in self.path else document).encode())
        elif name in self.files and f"/org/net/resolve/{COMMIT}/" in self.path:
            self._send(self.files[name], name)
        else:
            self.send_error(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send(self, content: bytes, name: str = "document") -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{name}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


PATHS = (
    "import sys; from runner.checkpoints.locate import checkpoint_paths; "
    "print(*checkpoint_paths(sys.argv[1]))"
)


def resolved_in_a_process(address: str, cache: Path, **variables: str) -> str:
    environment = {**os.environ, "HF_HUB_CACHE": str(cache), "PYTHONPATH": os.getcwd(), **variables}
    command = [sys.executable, "-c", PATHS, address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip()


def test_what_is_not_cached_is_downloaded_once(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    safetensors.numpy.save_file({"w": np.arange(3, dtype=np.float32)}, path)
    shard = "model-00001-of-00001.safetensors"
    index = "model.safetensors.index.json"
    Hub.files = {
        shard: path.read_bytes(),
        index: json.dumps({"weight_map": {"w": shard}}).encode(),
        "tf_model.h5": b"not wanted",
    }
    cache = tmp_path / "cache"
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        downloaded = resolved_in_a_process("hf://org/net", cache, HF_ENDPOINT=endpoint)
        misspelt = resolved_in_a_process("hf://org/net/model.bin", cache, HF_ENDPOINT=endpoint)
        server.shutdown()
    assert "hf://org/net/model.bin cannot be downloaded\n  cause: it holds no model.bin" in misspelt
    assert downloaded == str(cache / "models--org--net" / "snapshots" / COMMIT / index)
    assert not Path(downloaded).with_name("tf_model.h5").exists()
    ((_, value),) = open_reader(downloaded).read(["w"])
    assert value.tolist() == [0, 1, 2]
    for address in ("hf://org/net", f"hf://org/net@{COMMIT}"):
        assert resolved_in_a_process(address, cache, HF_HUB_OFFLINE="1") == downloaded


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"not installed.*\n.*runner\[hub\]"):
        checkpoint_paths("hf://org/other")


def test_a_hub_that_does_not_answer_is_an_error_with_the_reason(tmp_path: Path) -> None:
    message = resolved_in_a_process("hf://org/net", tmp_path, HF_ENDPOINT="http://127.0.0.1:1")
    assert "hf://org/net cannot be downloaded\n  cause: [Errno 111] Connection refused" in message
