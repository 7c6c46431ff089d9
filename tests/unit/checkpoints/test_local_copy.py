from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from runner.checkpoints.files import cache_directory, cached, local_copy
from runner.errors import CheckpointError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def remote() -> Iterator[str]:
    tf.io.gfile.makedirs("ram://copies")
    yield "ram://copies/file.bin"
    tf.io.gfile.rmtree("ram://copies")


def _write(path: str, content: str) -> None:
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(content)


def test_a_local_file_stays_where_it_is(cache: Path) -> None:
    assert local_copy("/some/file") == "/some/file"
    assert not cache.exists()


def test_a_remote_file_is_copied_once(remote: str) -> None:
    _write(remote, "first")
    copy = local_copy(remote)
    assert (Path(copy).name, Path(copy).read_text()) == ("file.bin", "first")
    Path(copy).write_text("seen")
    assert Path(local_copy(remote)).read_text() == "seen"


def test_a_changed_remote_file_is_copied_again(remote: str) -> None:
    _write(remote, "first")
    local_copy(remote)
    _write(remote, "second one")
    assert Path(local_copy(remote)).read_text() == "second one"


def test_a_missing_remote_file_is_explained(remote: str) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be copied to .*cache"):
        local_copy(f"{remote}.nothing")


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
