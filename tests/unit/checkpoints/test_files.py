from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from runner.checkpoints import files
from runner.checkpoints.files import cache_directory, cached, local_copy
from runner.errors import CheckpointError


@pytest.fixture(params=["local", "remote"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder with a file and a folder in it."""
    path = str(tmp_path) if request.param == "local" else "memory://files"
    system, _ = fsspec.url_to_fs(path)
    system.makedirs(f"{path}/inner")
    for name in ("a.txt", "inner/b"):
        system.pipe_file(f"{path}/{name}", b"content")
    yield path
    if request.param == "remote":
        system.rm(path, recursive=True)


def test_both_kinds_answer_alike(folder: str) -> None:
    assert files.names_in(folder) == ["a.txt", "inner"]
    assert files.matching(folder, "*.txt") == [f"{folder}/a.txt"]
    assert files.matching(f"{folder}/nothing", "*") == []
    assert files.is_file(f"{folder}/a.txt")
    assert files.is_directory(f"{folder}/inner")
    assert not files.is_file(f"{folder}/inner")
    assert not files.exists(f"{folder}/nothing")
    assert files.size(f"{folder}/a.txt") == 7
    assert files.read_text(f"{folder}/a.txt") == "content"
    assert files.stamp(f"{folder}/a.txt") == files.stamp(f"{folder}/a.txt")


def test_a_missing_file_is_an_error(folder: str) -> None:
    missing = f"{folder}/nothing"
    for action in (files.size, files.stamp, files.read_text, files.names_in):
        with pytest.raises((OSError, CheckpointError), match=r"nothing|No such file|not found"):
            action(missing)


def test_a_digest_is_of_the_content_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for content in (b"abc", b"abd"):
        path.write_bytes(content)
        os.utime(path, ns=(1, ord(content[2:])))
        expected = f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert files.digest_of_file(str(path)) == expected
    later, read = files.digest_later(str(path)), files.digest_later(str(path))
    assert read() == expected
    path.write_bytes(b"another content")
    with pytest.raises(CheckpointError, match="it has changed since it was opened"):
        later()
    path.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        later()
    assert read() == expected, "what is known is kept, also for the end of a long run"
    assert files.digest_of_parts(["a", "b"]) != files.digest_of_parts(["b", "a"])
    with pytest.raises(FileNotFoundError, match="nothing"):
        files.digest_of_file(str(tmp_path / "nothing"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def remote_file() -> Iterator[str]:
    yield "memory://copies/file.bin"
    fsspec.filesystem("memory").rm("/copies", recursive=True)


def test_a_remote_file_is_copied_when_it_has_changed(cache: Path, remote_file: str) -> None:
    assert local_copy("/some/file") == "/some/file"
    assert not cache.exists()
    for content in ("first", "second one"):
        fsspec.filesystem("memory").pipe_file(remote_file, content.encode())
        copy = Path(local_copy(remote_file))
        assert (copy.name, copy.read_text()) == ("file.bin", content)
        copy.write_text("seen")
        assert Path(local_copy(remote_file)).read_text() == "seen"
    with pytest.raises(CheckpointError, match=r"cannot be copied to .*cache"):
        local_copy(f"{remote_file}.nothing")


def test_an_interrupted_copy_leaves_nothing_that_counts(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("key", fail)
    folder = cached("key", lambda folder: None)
    assert list(folder.iterdir()) == []


def test_the_cache_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/cache")
    assert cache_directory() == Path("/somewhere/cache/runner")
