from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import runner.runs.saved_checkpoints
from runner.errors import CheckpointError
from runner.runs.run_directory import RunDirectory
from runner.runs.saved_checkpoints import damage, recover, save, state


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run with checkpoints of the steps 1, 2 and 3."""
    directory = RunDirectory(tmp_path / "001")
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", initializer=np.arange(1000.0), use_resource=True)
        tf.get_variable("names", initializer=["a", "bc"], use_resource=True)
        saver = tf.train.Saver(max_to_keep=3, save_relative_paths=True)
        session.run(tf.global_variables_initializer())
        for step in (1, 2, 3):
            save(session, saver, directory.checkpoints, step)
            session.run(weight.assign_add(np.ones(1000)))
    return directory


def _recovered(run: RunDirectory) -> list[str]:
    lines: list[str] = []
    recover(run, lines.append)
    return lines


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DATA, INDEX = "data-00000-of-00001", "index"


def test_a_whole_run_is_left_as_it_is(run: RunDirectory) -> None:
    before = {file: file.stat().st_mtime_ns for file in run.checkpoints.iterdir()}
    assert _recovered(run) == []
    assert {file: file.stat().st_mtime_ns for file in run.checkpoints.iterdir()} == before


@pytest.mark.parametrize(
    ("end", "harm", "reason"),
    [
        (DATA, _truncate, "its data files hold"),
        (DATA, _flip, "Checksum does not match|corrupted"),
        (DATA, Path.unlink, "there is no .*data-00000-of-00001"),
        (INDEX, _truncate, "does not end like a table"),
        (INDEX, Path.unlink, "its index is missing"),
    ],
    ids=["truncated", "checksum", "missing shard", "truncated index", "missing index"],
)
def test_a_damaged_newest_checkpoint_is_set_aside_and_the_one_before_taken(
    run: RunDirectory, end: str, harm: Callable[[Path], None], reason: str
) -> None:
    harm(run.checkpoints / f"model.ckpt-3.{end}")
    files = {each.name for each in run.checkpoints.glob("model.ckpt-3.*")}
    (line,) = _recovered(run)
    assert line.startswith(f"checkpoint of step 3 is damaged and set aside in {run.path}/damaged/")
    assert line.endswith("; the run resumes from step 2")
    assert re.search(reason, line), line
    assert {each.name for each in (run.path / "damaged" / "001").iterdir()} == files
    assert state(run.checkpoints) == ["model.ckpt-1", "model.ckpt-2"]
    assert tf.train.latest_checkpoint(str(run.checkpoints)).endswith("-2")
    assert _recovered(run) == []


def test_several_may_be_damaged_and_nothing_set_aside_is_overwritten(run: RunDirectory) -> None:
    for step in (3, 2):
        _truncate(run.checkpoints / f"model.ckpt-{step}.{DATA}")
    assert len(_recovered(run)) == 2
    assert sorted(each.name for each in (run.path / "damaged").iterdir()) == ["001", "002"]
    assert state(run.checkpoints) == ["model.ckpt-1"]


@pytest.mark.parametrize("content", [None, b"", b"\x00\xff not what it was"])
def test_a_damaged_list_of_checkpoints_is_written_anew(
    run: RunDirectory, content: bytes | None
) -> None:
    listed = run.checkpoints / "checkpoint"
    listed.unlink()
    if content is not None:
        listed.write_bytes(content)
    assert _recovered(run) == []
    assert state(run.checkpoints) == ["model.ckpt-1", "model.ckpt-2", "model.ckpt-3"]
    assert run.has_checkpoint()


def test_a_list_that_names_files_that_are_gone_is_written_anew(run: RunDirectory) -> None:
    for file in run.checkpoints.glob("model.ckpt-3.*"):
        file.unlink()
    (line,) = _recovered(run)
    assert line.startswith("checkpoint model.ckpt-3 is gone from ")
    assert line.endswith("the run resumes from step 2")
    assert state(run.checkpoints) == ["model.ckpt-1", "model.ckpt-2"]


def test_where_none_is_whole_nothing_is_moved(run: RunDirectory) -> None:
    for step in (1, 2, 3):
        _flip(run.checkpoints / f"model.ckpt-{step}.{DATA}")
    before = sorted(run.checkpoints.iterdir())
    with pytest.raises(CheckpointError, match="none of its checkpoints is whole") as caught:
        _recovered(run)
    assert "resume=never" in str(caught.value)
    assert sorted(run.checkpoints.iterdir()) == before


def test_what_an_unfinished_save_left_is_removed(run: RunDirectory) -> None:
    (run.checkpoints / f"model.ckpt-4.{DATA}.tempstate123").write_bytes(b"half")
    assert _recovered(run) == []
    assert not list(run.checkpoints.glob("*tempstate*"))


def test_a_run_without_checkpoints_is_left_alone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "001")
    assert _recovered(run) == []
    assert not run.path.exists()


def test_a_damaged_best_checkpoint_is_set_aside_with_its_record(run: RunDirectory) -> None:
    run.best.mkdir()
    for file in (*run.checkpoints.glob("model.ckpt-3.*"),):
        (run.best / file.name).write_bytes(file.read_bytes())
    (run.best / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"\n')
    run.best_record.write_text("{}")
    assert _recovered(run) == []
    _flip(run.best / f"model.ckpt-3.{DATA}")
    (line,) = _recovered(run)
    assert "the best checkpoint, of step 3, is damaged and set aside in" in line
    assert list(run.best.iterdir()) == []


def test_a_large_checkpoint_is_read_in_parts(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.runs.saved_checkpoints, "_GROUP_BYTES", 10)
    assert damage(run.checkpoints / "model.ckpt-3") is None
    _flip(run.checkpoints / f"model.ckpt-3.{DATA}")
    assert damage(run.checkpoints / "model.ckpt-3") is not None
