"""Checkpoints are saved so that a crash leaves a whole one, which is found again."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import runner.runs.saved_checkpoints
from runner.errors import CheckpointError, SaveError
from runner.hooks import CheckpointHook, SavePolicy, StopAtStepHook
from runner.hooks.checkpoint import save_errors, warned
from runner.runs.run_directory import RunDirectory
from runner.runs.saved_checkpoints import by_step, damage, is_save_error, recover, save, state
from tests.samples.counter import Counter


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of the steps 1, 2 and 3."""
    directory = RunDirectory(tmp_path_factory.mktemp("saved") / "001")
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", initializer=np.arange(1000.0), use_resource=True)
        tf.get_variable("names", initializer=["a", "bc"], use_resource=True)
        saver = tf.train.Saver(max_to_keep=3, save_relative_paths=True)
        session.run(tf.global_variables_initializer())
        for step in (1, 2, 3):
            save(session, saver, directory.checkpoints, step)
            session.run(weight.assign_add(np.ones(1000)))
    return directory.path


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> RunDirectory:
    """A copy of that run."""
    return RunDirectory(Path(shutil.copytree(saved, tmp_path / "001")))


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


def test_a_whole_run_is_left_as_it_is_but_for_an_unfinished_save(run: RunDirectory) -> None:
    before = {file: file.stat().st_mtime_ns for file in run.checkpoints.iterdir()}
    (run.checkpoints / f"model.ckpt-4.{DATA}.tempstate123").write_bytes(b"half")
    assert _recovered(run) == []
    assert {file: file.stat().st_mtime_ns for file in run.checkpoints.iterdir()} == before
    new = RunDirectory(run.path.parent / "002")
    assert _recovered(new) == []
    assert not new.path.exists()


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
    files = {path.name for path in run.checkpoints.glob("model.ckpt-3.*")}
    (line,) = _recovered(run)
    assert line.startswith(f"checkpoint of step 3 is damaged and set aside in {run.path}/damaged/")
    assert line.endswith("; the run resumes from step 2")
    assert re.search(reason, line), line
    assert {path.name for path in (run.path / "damaged" / "001").iterdir()} == files
    assert state(run.checkpoints) == ["model.ckpt-1", "model.ckpt-2"]
    assert tf.train.latest_checkpoint(str(run.checkpoints)).endswith("-2")
    assert _recovered(run) == []


def test_several_may_be_damaged_and_nothing_set_aside_is_overwritten(run: RunDirectory) -> None:
    for step in (3, 2):
        _truncate(run.checkpoints / f"model.ckpt-{step}.{DATA}")
    assert len(_recovered(run)) == 2
    assert sorted(path.name for path in (run.path / "damaged").iterdir()) == ["001", "002"]
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
    monkeypatch.setattr(runner.runs.saved_checkpoints, "_BATCH_BYTES", 10)
    assert damage(run.checkpoints / "model.ckpt-3") is None
    _flip(run.checkpoints / f"model.ckpt-3.{DATA}")
    assert damage(run.checkpoints / "model.ckpt-3") is not None


def _saving(counter: Counter, disk: Path, numbers: int, every: int, *policy: Any) -> CheckpointHook:
    """Returns a hook that also saves a variable of so many numbers."""
    tf.get_variable("ballast", [numbers], initializer=tf.zeros_initializer(), use_resource=True)
    counter.saver = tf.train.Saver(max_to_keep=2, save_relative_paths=True)
    return CheckpointHook(counter.saver, disk / "saved", counter.step, every, *policy)


def test_a_full_disk_fails_a_save_and_the_next_is_the_next_try(
    counter: Counter, small_disk: Path
) -> None:
    said: list[str] = []
    filler = small_disk / "filler"

    class _Fill(tf.train.SessionRunHook):
        def after_run(
            self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
        ) -> None:
            step = run_context.session.run(counter.step_variable)
            if step == 3:
                filler.write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - 8192))
            elif step == 5:
                filler.unlink()

    hook = _saving(counter, small_disk, 50_000, 1, SavePolicy(on_error=warned(said.append)))
    counter.run([_Fill(), hook, StopAtStepHook(6)])
    assert [line.splitlines()[0] for line in said] == [
        "warning: step 3 is not saved",
        "warning: step 4 is not saved",
    ]
    assert "No space left on device" in said[0]
    assert state(small_disk / "saved") == ["model.ckpt-5", "model.ckpt-6"]
    assert not list((small_disk / "saved").glob("*tempstate*"))


@pytest.mark.parametrize(("warn", "last"), [(True, 2), (False, 9)])
def test_a_save_that_fails_is_an_error_at_the_end_and_where_that_is_asked_for(
    warn: bool, last: int, counter: Counter, small_disk: Path
) -> None:
    said: list[str] = []
    policy = [SavePolicy(on_error=warned(said.append))] if warn else []
    hook = _saving(counter, small_disk, 500_000, 2, *policy)
    with pytest.raises(SaveError, match=r"step 2 is not saved\n  cause: .*No space left"):
        counter.run([hook, StopAtStepHook(last)])
    assert len(said) == warn


@pytest.mark.parametrize("call", [1, 3])
def test_until_the_new_one_is_on_the_disk_the_old_one_is_listed_and_there(
    counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    fsync, calls = os.fsync, 0

    def fail(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        save(session, counter.saver, tmp_path, 1)
        save(session, counter.saver, tmp_path, 2)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            error = pytest.raises(SaveError, match=r"step 3 is not saved\n  cause: .*Input/output")
            with error, save_errors(tmp_path, 3):
                save(session, counter.saver, tmp_path, 3)
        assert state(tmp_path) == ["model.ckpt-1", "model.ckpt-2"]
        assert {1, 2} <= set(by_step(tmp_path))
        save(session, counter.saver, tmp_path, 4)
    assert state(tmp_path) == ["model.ckpt-2", "model.ckpt-4"]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-4")


def test_only_the_disk_makes_a_save_error(tmp_path: Path) -> None:
    full = tf.errors.ResourceExhaustedError(None, None, f"{tmp_path}/x; No space left on device")
    assert is_save_error(full, tmp_path)
    assert is_save_error(OSError(28, "No space left on device"), tmp_path)
    assert not is_save_error(tf.errors.AbortedError(None, None, f"{tmp_path}"), tmp_path)
    assert not is_save_error(tf.errors.UnimplementedError(None, None, "no state"), tmp_path)
    assert not is_save_error(ValueError("something else"), tmp_path)
