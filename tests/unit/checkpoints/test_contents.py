from __future__ import annotations

from pathlib import Path

import pytest

from runner.checkpoints import contents
from runner.checkpoints.contents import read_state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "model-1.index",
        "model-1.data-00000-of-00001",
        "model-12.index",
        "other.index",
        "w.h5",
        "m.keras",
        "a.npz",
        "notes.txt",
        "big.safetensors.index.json",
        "big-00001-of-00002.safetensors",
        "single.safetensors",
    ):
        (tmp_path / name).touch()
    return tmp_path


def test_checkpoints_are_listed_and_parts_of_them_are_not(folder: Path) -> None:
    assert [Path(each).name for each in contents.in_directory(str(folder))] == [
        "a.npz",
        "big.safetensors.index.json",
        "m.keras",
        "model-1",
        "model-12",
        "other",
        "single.safetensors",
        "w.h5",
    ]


def test_steps_are_at_the_end_of_names(folder: Path) -> None:
    assert contents.steps(str(folder)) == {1: f"{folder}/model-1", 12: f"{folder}/model-12"}
    assert contents.in_order(str(folder)) == [f"{folder}/model-1", f"{folder}/model-12"]


def test_a_directory_without_a_state_file_has_no_newest(folder: Path) -> None:
    assert contents.newest(str(folder)) is None


def test_the_newest_is_the_last_in_order(folder: Path) -> None:
    (folder / "checkpoint").write_text(
        'model_checkpoint_path: "model-1"\n'
        'all_model_checkpoint_paths: "model-1"\n'
        'all_model_checkpoint_paths: "gone-5"\n'
        'all_model_checkpoint_paths: "model-12"\n'
    )
    assert contents.newest(str(folder)) == f"{folder}/model-1"
    assert contents.in_order(str(folder)) == [f"{folder}/model-12", f"{folder}/model-1"]


def test_the_current_directory_has_an_empty_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert "model-1" in contents.in_directory("")
    assert contents.is_checkpoint("model-1")
    assert not contents.is_checkpoint("model-2")


def test_paths_are_relative_to_the_directory(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "m-2"\n'
        'all_model_checkpoint_paths: "/elsewhere/m-1"\n'
        'all_model_checkpoint_paths: "m-2"\n'
    )
    assert read_state(str(tmp_path)) == ("/elsewhere/m-1", f"{tmp_path}/m-2")


def test_a_missing_or_damaged_file_says_nothing(tmp_path: Path) -> None:
    assert read_state(str(tmp_path)) is None
    (tmp_path / "checkpoint").write_text("<html>")
    assert read_state(str(tmp_path)) is None


def test_a_file_is_a_v1_checkpoint_by_its_content(tmp_path: Path) -> None:
    table = bytes(100) + bytes.fromhex("57fb808b247547db")
    for name in ("slim.ckpt", "model.ckpt-7", "unusual_name"):
        (tmp_path / name).write_bytes(table)
    (tmp_path / "notes.ckpt").write_text("something else")
    found = [Path(path).name for path in contents.in_directory(str(tmp_path))]
    assert found == ["model.ckpt-7", "slim.ckpt"]
