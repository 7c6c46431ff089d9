from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from runner.errors import SaveError
from runner.hooks import CheckpointHook, SavePolicy, StopAtStepHook
from runner.hooks.checkpoint import save_errors, warned
from runner.runs.saved_checkpoints import by_step, is_save_error, save, state
from tests.tiny.counter import Counter


@pytest.fixture
def counter() -> Iterator[Counter]:
    with tf.Graph().as_default():
        yield Counter()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs rights that this process does not have")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def _ballast(counter: Counter, numbers: int) -> None:
    tf.get_variable("ballast", [numbers], initializer=tf.zeros_initializer(), use_resource=True)
    counter.saver = tf.train.Saver(max_to_keep=2, save_relative_paths=True)


def test_a_full_disk_fails_a_save_and_the_next_is_the_next_try(
    counter: Counter, small_disk: Path
) -> None:
    _ballast(counter, 50_000)
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

    hook = CheckpointHook(
        counter.saver,
        small_disk / "saved",
        counter.step,
        1,
        SavePolicy(on_error=warned(said.append)),
    )
    counter.run([_Fill(), hook, StopAtStepHook(6)])
    assert [line.splitlines()[0] for line in said] == [
        "warning: step 3 is not saved",
        "warning: step 4 is not saved",
    ]
    assert "No space left on device" in said[0]
    assert state(small_disk / "saved") == ["model.ckpt-5", "model.ckpt-6"]
    assert not list((small_disk / "saved").glob("*tempstate*"))


def test_a_full_disk_at_the_end_is_an_error(counter: Counter, small_disk: Path) -> None:
    _ballast(counter, 500_000)
    said: list[str] = []
    hook = CheckpointHook(
        counter.saver,
        small_disk / "saved",
        counter.step,
        2,
        SavePolicy(on_error=warned(said.append)),
    )
    with pytest.raises(SaveError, match=r"step 2 is not saved\n  cause: .*No space left"):
        counter.run([hook, StopAtStepHook(2)])
    assert len(said) == 1


def test_a_save_that_fails_raises_where_that_is_asked_for(
    counter: Counter, small_disk: Path
) -> None:
    _ballast(counter, 500_000)
    hook = CheckpointHook(counter.saver, small_disk / "saved", counter.step, 2)
    with pytest.raises(SaveError, match="step 2 is not saved"):
        counter.run([hook, StopAtStepHook(9)])


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
