"""The last lines that a run prints: its result, where to find it, and what to do next."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

from runner.checkpoints import contents
from runner.config.spelling import on_run, program, resuming
from runner.training.run import Run


def of_finished(run: Run) -> Iterator[str]:
    """Yields the last lines of a finished run."""
    best = best_value(run)
    if best:
        yield f"best:    {best}"
    yield f"time:    {_duration(time.monotonic() - run.started)}"
    yield f"results: {run.tracker.location()}"
    yield f"files:   {run.directory.path}"
    if command := run.store.open_command():
        yield f"open:    {command}"
    page = run.store.page(run.directory.path)
    if page and page not in run.tracker.location():
        yield f"page:    {page}"
    if run.suggests:
        yield f"test:    {on_run('evaluate', run.directory.path)}"
        yield f"export:  {on_run('export', run.directory.path)}"


def of_interrupted(run: Run) -> Iterator[str]:
    """Yields the last lines of a run ended by a signal; none if another process reports that."""
    if not run.suggests:
        return
    steps = contents.steps(str(run.directory.checkpoints))
    yield f"saved:   {f'step {max(steps)}' if steps else 'nothing yet'}"
    best = best_value(run)
    if best:
        yield f"best:    {best}"
    yield f"files:   {run.directory.path}"
    yield f"resume:  {program()} {run.mask.command(resuming(sys.argv[1:]))}"


def best_value(run: Run) -> str:
    """Returns the objective, its best value so far and its step; empty before an evaluation."""
    if not run.directory.best_record.is_file():
        return ""
    content = json.loads(run.directory.best_record.read_text())
    objective = run.config.train.objective
    value = content["metrics"][objective.removeprefix("validation/")]
    return f"{objective} {value:.4g} at step {content['step']}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    first = next((index for index, (count, _) in enumerate(parts) if count), 2)
    # Two units are enough.
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2])
