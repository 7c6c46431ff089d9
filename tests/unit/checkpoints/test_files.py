from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from runner.checkpoints import files


@pytest.fixture(params=["local", "remote"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder with a file and a folder in it."""
    path = str(tmp_path) if request.param == "local" else "ram://files"
    tf.io.gfile.makedirs(f"{path}/inner")
    for name in ("a.txt", "inner/b"):
        with tf.io.gfile.GFile(f"{path}/{name}", "w") as file:
            file.write("content")
    yield path
    if request.param == "remote":
        tf.io.gfile.rmtree(path)


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


def test_a_missing_file_is_an_os_error(folder: str) -> None:
    missing = f"{folder}/nothing"
    for action in (files.size, files.stamp, files.read_text, files.names_in):
        with pytest.raises(OSError, match=r"nothing|No such file|not exist|not found"):
            action(missing)
