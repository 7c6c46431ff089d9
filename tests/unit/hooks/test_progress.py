from __future__ import annotations

import io
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf
from rich.console import Console

from runner.console import Screen
from runner.hooks import CheckpointHook, MetricsHook, ProgressHook, StopAtStepHook
from tests.tiny.counter import Counter


class _Clock:
    """Half a second passes between two looks."""

    def __init__(self) -> None:
        self._seconds = 100.0

    def __call__(self) -> float:
        self._seconds += 0.5
        return self._seconds


def _screen(*, terminal: bool) -> Screen:
    return Screen(Console(file=io.StringIO(), force_terminal=terminal, width=100, highlight=False))


def _written(screen: Screen) -> str:
    file = screen.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def _metrics(counter: Counter, progress: ProgressHook) -> MetricsHook:
    return MetricsHook({"loss": counter.value}, counter.step, 5, progress.show)


def test_elsewhere_than_on_a_terminal_it_prints_lines(counter: Counter) -> None:
    screen = _screen(terminal=False)
    progress = ProgressHook(counter.step, 10, screen, _Clock())
    counter.run([StopAtStepHook(10), _metrics(counter, progress), progress])
    assert _written(screen).splitlines() == [
        "step 5/10  loss 50  (10 steps/s, 0 s left)",
        "step 10/10  loss 100  (10 steps/s, 0 s left)",
    ]


def test_time_left_counts_from_where_the_session_started(counter: Counter, tmp_path: Path) -> None:
    save = CheckpointHook(counter.saver, tmp_path, counter.step, every=100)
    counter.run([StopAtStepHook(10), save])
    screen = _screen(terminal=False)
    progress = ProgressHook(counter.step, 215, screen, _Clock())
    counter.run([StopAtStepHook(15), _metrics(counter, progress), progress], own=tmp_path)
    assert _written(screen) == "step 15/215  loss 150  (10 steps/s, 20 s left)\n"


def test_no_time_is_left_beyond_the_last_step(counter: Counter) -> None:
    screen = _screen(terminal=False)
    progress = ProgressHook(counter.step, 3, screen, _Clock())
    counter.run([StopAtStepHook(5), _metrics(counter, progress), progress])
    assert _written(screen) == "step 5/3  loss 50  (10 steps/s, 0 s left)\n"


def test_a_terminal_shows_a_bar_that_disappears(counter: Counter) -> None:
    screen = _screen(terminal=True)
    progress = ProgressHook(counter.step, 10, screen)
    counter.run([StopAtStepHook(10), _metrics(counter, progress), progress])
    written = _written(screen)
    assert "training" in written
    assert "10/10" in written
    assert "loss 100" in written
    assert written.endswith("\x1b[2K")  # The line is erased.


def test_the_bar_is_taken_away_after_an_error(counter: Counter) -> None:
    screen = _screen(terminal=True)
    progress = ProgressHook(counter.step, 10, screen)

    class _Fail(tf.train.SessionRunHook):
        def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
            raise ValueError("the hook failed")

    with pytest.raises(ValueError, match="the hook failed"):
        counter.run([progress, _Fail()])
    assert not _written(screen).endswith("\x1b[2K")
    progress.close()
    assert _written(screen).endswith("\x1b[2K")
    progress.close()
