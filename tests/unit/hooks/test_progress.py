from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf
from rich.console import Console

from runner.console import NotebookScreen, Screen
from runner.hooks import CheckpointHook, MetricsHook, ProgressHook, StopAtStepHook
from tests.samples.counter import Counter
from tests.support.clock import Clock


class _Case:
    """A hook, and what it writes; half a second passes between two looks at the clock."""

    def __init__(
        self, counter: Counter, steps: int, *, terminal: bool = False, width: int = 100
    ) -> None:
        self.counter, self._file = counter, io.StringIO()
        console = Console(file=self._file, force_terminal=terminal, width=width, highlight=False)
        self.hook = ProgressHook(counter.step, steps, Screen(console), Clock(tick=0.5))

    def run(self, last: int, own: Path | None = None) -> str:
        metrics = MetricsHook({"loss": self.counter.value}, self.counter.step, 5, self.hook.show)
        self.counter.run([StopAtStepHook(last), metrics, self.hook], own)
        return self.written()

    def written(self) -> str:
        return self._file.getvalue()


def test_elsewhere_than_on_a_terminal_it_prints_lines(counter: Counter) -> None:
    assert _Case(counter, 10).run(10).splitlines() == [
        "step 5/10  loss 50  (10 steps/s, 0 s left)",
        "step 10/10  loss 100  (10 steps/s, 0 s left)",
    ]
    # No time is left beyond the last step.
    assert _Case(counter, 3).run(5) == "step 5/3  loss 50  (10 steps/s, 0 s left)\n"


def test_time_left_counts_from_where_the_session_started(counter: Counter, tmp_path: Path) -> None:
    save = CheckpointHook(counter.saver, tmp_path, counter.step, every=100)
    counter.run([StopAtStepHook(10), save])
    shown = _Case(counter, 215).run(15, own=tmp_path)
    assert shown == "step 15/215  loss 150  (10 steps/s, 20 s left)\n"


def test_a_terminal_shows_a_bar_that_disappears(counter: Counter) -> None:
    written = _Case(counter, 10, terminal=True).run(10)
    for part in ("training", "10/10", "loss 100"):
        assert part in written
    assert written.endswith("\x1b[2K")  # The line is erased.


class _Notebook(NotebookScreen):
    def __init__(self) -> None:
        super().__init__()
        self.html: list[str] = []

    def live(self, html: str) -> Callable[[str], None]:
        self.html.append(html)
        return self.html.append


def test_a_notebook_shows_a_bar_that_disappears(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.hooks.progress._DRAWN_PER_SECOND", 1e9)
    screen = _Notebook()
    hook = ProgressHook(counter.step, 10, screen)
    metrics = MetricsHook({"loss": counter.value}, counter.step, 5, hook.show)
    counter.run([StopAtStepHook(10), metrics, hook])
    text = [re.sub("<.*?>", "", html) for html in screen.html]
    assert re.search(r"training +0/10 ", text[0])
    assert re.search(r"━{40} 10/10 .* loss 100", text[-2])
    assert screen.html[-1] == ""


@pytest.mark.parametrize("width", [100, 50, 48])
def test_many_metrics_leave_the_numbers_whole(counter: Counter, width: int) -> None:
    case = _Case(counter, 10, terminal=True, width=width)
    metrics = {f"metric_{number}": counter.value for number in range(9)}
    shows = MetricsHook(metrics, counter.step, 5, case.hook.show)
    counter.run([StopAtStepHook(10), shows, case.hook])
    for part in ("training", "10/10", *(("metric_0 100", "…") if width == 100 else ())):
        assert part in case.written()
    assert "metric_8" not in case.written()


def test_the_bar_is_taken_away_after_an_error(counter: Counter) -> None:
    class _Fail(tf.train.SessionRunHook):
        def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
            raise ValueError("the hook failed")

    case = _Case(counter, 10, terminal=True)
    with pytest.raises(ValueError, match="the hook failed"):
        counter.run([case.hook, _Fail()])
    assert not case.written().endswith("\x1b[2K")
    case.hook.close()
    assert case.written().endswith("\x1b[2K")
    case.hook.close()
