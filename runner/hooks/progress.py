"""Shows the progress of training: a bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf
from rich import progress
from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.table import Column
from rich.text import Text

from runner.console import NotebookScreen, Screen, as_html
from runner.hooks.scheduled import (
    Session,
    SessionRunArgs,
    SessionRunContext,
    SessionRunValues,
    present_step,
)

# Drawing holds the interpreter for some milliseconds, and the loop needs it too.
_DRAWN_PER_SECOND = 2.0
# What the numbers, and a short bar, need beside the metrics.
_BESIDE = 50


def _one_line() -> Column:
    """Returns a column that is cut rather than folded."""
    return Column(no_wrap=True, overflow="ellipsis")


class _Rate(progress.ProgressColumn):
    def render(self, task: progress.Task) -> Text:
        """Returns the steps per second of the last seconds."""
        return Text(f"{task.speed:.0f} steps/s" if task.speed else "")


class _Bar(progress.Progress):
    """A bar that leaves room for the `^C` that a terminal shows.

    In a full line it would go to the next one, and the bar stay where nothing erases it.
    """

    def __init__(
        self, *columns: progress.ProgressColumn, console: Console, **settings: Any
    ) -> None:
        self._terminal = console  # Rich asks for the first bar before it has a console.
        super().__init__(*columns, console=console, **settings)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yields the bar, a little narrower than the terminal."""
        for renderable in super().get_renderables():
            yield Constrain(renderable, max(self._terminal.width - len("^C "), 1))


class _NotebookBar(progress.Progress):
    """The bar as HTML below a notebook's cell; Rich itself needs `ipywidgets` to replace it."""

    def __init__(self, *columns: progress.ProgressColumn, screen: NotebookScreen) -> None:
        super().__init__(*columns, console=screen.console)
        self._screen, self._drawn = screen, time.monotonic()

    def start(self) -> None:
        """Shows the bar."""
        self._replace = self._screen.live(as_html(self.get_renderable()))

    def update(self, *args: Any, **changes: Any) -> None:
        """Takes the step or the values, and draws now and then."""
        super().update(*args, **changes)
        now = time.monotonic()
        if now - self._drawn >= 1 / _DRAWN_PER_SECOND:
            self._drawn = now
            self._replace(as_html(self.get_renderable()))

    def stop(self) -> None:
        """Removes the bar."""
        self._replace("")


class ProgressHook(tf.compat.v1.train.SessionRunHook):
    """A bar with rate and time left on a terminal or in a notebook; elsewhere `show` prints a line.

    Args:
      step: the global step after the train op has run.
      steps: the step at which training ends.
      screen: where to show it.
      clock: seconds from any origin; for tests.
    """

    def __init__(
        self,
        step: tf.Tensor,
        steps: int,
        screen: Screen,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._step_after, self._steps, self._screen, self._clock = step, steps, screen, clock
        self._shown = (0.0, 0)
        self._bar: progress.Progress | None = None
        self._task: Any = None

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Starts the bar at the step from which the session starts."""
        step = present_step(session)
        self._shown = (self._clock(), step)
        self.close()
        in_notebook = isinstance(self._screen, NotebookScreen)
        columns = (
            progress.TextColumn("training", table_column=_one_line()),
            # On a terminal it takes what the others leave.
            progress.BarColumn(40 if in_notebook else None),
            progress.MofNCompleteColumn(table_column=_one_line()),
            _Rate(table_column=_one_line()),
            progress.TimeRemainingColumn(table_column=_one_line()),
            progress.TextColumn("{task.fields[values]}", table_column=_one_line()),
        )
        if isinstance(self._screen, NotebookScreen):
            self._bar = _NotebookBar(*columns, screen=self._screen)
        elif self._screen.is_terminal:
            self._bar = _Bar(
                *columns,
                console=self._screen.console,
                transient=True,
                refresh_per_second=_DRAWN_PER_SECOND,
            )
        if self._bar is not None:
            self._task = self._bar.add_task("", total=self._steps, completed=step, values="")
            self._bar.start()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches the step."""
        return SessionRunArgs(self._step_after)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Moves the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=int(run_values.results))

    def show(self, values: Mapping[str, float], step: int) -> None:
        """Shows training metrics: in the bar, or as a line with rate and time left.

        The rate counts the steps since the previous line.
        """
        text = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        if self._bar is not None:
            if self._screen.is_terminal:
                # Rich would cut every column, the number of the step too.
                room = self._screen.console.width - _BESIDE
                shown = Text(text)
                shown.truncate(max(room, 1), overflow="ellipsis")
                text = shown.plain if room > 1 else ""
            self._bar.update(self._task, values=text)
            return
        (before, first), now = self._shown, self._clock()
        rate = (step - first) / (now - before) if now > before else 0.0
        self._shown = (now, step)
        # Asynchronous workers may go beyond the last step.
        left = f", {max(self._steps - step, 0) / rate:.0f} s left" if rate else ""
        self._screen.line(f"step {step}/{self._steps}  {text}  ({rate:.0f} steps/s{left})")

    def end(self, session: Session) -> None:
        """Removes the bar."""
        self.close()

    def close(self) -> None:
        """Removes the bar; for training that ends by an error. May be called again."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
