from __future__ import annotations

from pathlib import Path

from runner.checkpoints.contents import CheckpointState, read_state


def test_paths_are_relative_to_the_directory(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "m-2"\n'
        'all_model_checkpoint_paths: "/elsewhere/m-1"\n'
        'all_model_checkpoint_paths: "m-2"\n'
    )
    newest = f"{tmp_path}/m-2"
    assert read_state(str(tmp_path)) == CheckpointState(newest, ("/elsewhere/m-1", newest))


def test_a_missing_or_damaged_file_says_nothing(tmp_path: Path) -> None:
    assert read_state(str(tmp_path)) is None
    (tmp_path / "checkpoint").write_text("<html>")
    assert read_state(str(tmp_path)) is None
