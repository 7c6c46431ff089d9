"""Shows a restoration plan as a table and as summary lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from runner.restoration.collapse import collapse
from runner.restoration.plan import Assignment, RestorationPlan
from runner.restoration.rows import Row, rows, training

# So many unused tensors of a source are named where not all are asked for.
_UNUSED = 5


def report_rows(plan: RestorationPlan, *, full: bool = False) -> list[Row]:
    """Returns the rows of the report: numbered layers that agree as one, with `full` all."""
    return list(rows(plan)) if full else collapse(rows(plan))


def table(plan: RestorationPlan, *, full: bool = False) -> RenderableType:
    """Returns the variables, totals per source and the problems, for a rich console.

    Args:
      plan: the plan.
      full: whether every variable has a row of its own, and every unused tensor is named.
    """
    return _group(plan, report_rows(plan, full=full), full)


def text(plan: RestorationPlan, *, full: bool = False) -> str:
    """Returns the table as plain text, wide enough that nothing is folded."""
    shown = report_rows(plan, full=full)
    lines = [*summary(plan), *_details(plan, full), *problem_lines(plan)]
    widest = max((len(part) for line in lines for part in line.splitlines()), default=0)
    columns = sum(max((len(cell) for cell in column), default=0) for column in _columns(shown))
    console = Console(
        width=max(80, columns + 60, widest + 1), color_system=None, force_terminal=False
    )
    with console.capture() as capture:
        console.print(_group(plan, shown, full))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def summary(plan: RestorationPlan) -> list[str]:
    """Returns a line for each source, one for the initialised rest and one for what is frozen."""
    lines = []
    for scaffold, source in plan.sources.items():
        restored = plan.restored(scaffold)
        owned = [each for each in plan.assignments if each.scaffold == scaffold]
        initialised = sum(not each.pieces for each in owned)
        line = f"{scaffold}: {_count(restored)}"
        if scaffold in plan.unusable:
            line = f"{scaffold}: {_count(owned)}, the checkpoint cannot be used"
        elif source is None:
            line = f"{scaffold}: {_count(owned)} from initializers, no checkpoint"
        else:
            step = "" if source.step is None else f" @ step {source.step}"
            line += f" from {source.path}{step}"
            if initialised:
                line += f", {initialised} initialised"
            line += f"; {_plural(len(plan.unused[scaffold]), 'tensor')} unused"
            line += f"; {source.digest}" if source.digest else ""
        lines.append(line)
    rest = [each for each in plan.assignments if each.scaffold is None]
    lines.append(f"no scaffold: {_count(rest)} from initializers")
    frozen = [each for each in plan.assignments if training(each) == "frozen"]
    if frozen:
        lines.append(f"frozen: {_count(frozen)}")
    return lines


def problem_lines(plan: RestorationPlan) -> Iterator[str]:
    """Yields a heading and the problems, or nothing."""
    if plan.problems:
        yield f"\n{_plural(len(plan.problems), 'problem')}:"
        yield from (str(problem) for problem in plan.problems)


def _group(plan: RestorationPlan, shown: Sequence[Row], full: bool) -> RenderableType:
    with_notes = any(row.notes for row in shown)
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("variable", overflow="fold")
    grid.add_column("shape", overflow="fold")
    grid.add_column("dtype", no_wrap=True)
    grid.add_column("value from", overflow="fold")
    grid.add_column("trainable", overflow="fold", min_width=len("trainable"))
    if with_notes:
        grid.add_column("notes", overflow="fold")
    for row in shown:
        cells = [
            Text(row.variable),
            Text(row.shape),
            Text(row.dtype),
            Text(row.origin, style="green" if row.restored else ""),
            Text(row.training),
        ]
        grid.add_row(*cells, *([Text(row.notes)] if with_notes else []))
    lines = [Text(line) for line in (*summary(plan), *_details(plan, full))]
    problems = [Text(line, style="red") for line in problem_lines(plan)]
    return Group(grid, *lines, *problems)


def _details(plan: RestorationPlan, full: bool) -> Iterator[str]:
    for scaffold, unused in plan.unused.items():
        if unused:
            named = unused if full else unused[:_UNUSED]
            rest = f" and {len(unused) - len(named):,} more" if len(unused) > len(named) else ""
            yield f"unused in {scaffold}: {', '.join(named)}{rest}"
    yield from (f"note: {note}" for note in plan.notes)


def _columns(shown: Sequence[Row]) -> Iterator[list[str]]:
    for name in ("variable", "shape", "dtype", "origin", "training", "notes"):
        yield [str(getattr(row, name)) for row in shown]


def _count(assignments: Sequence[Assignment]) -> str:
    values = sum(math.prod(each.variable.tensor.shape) for each in assignments)
    return f"{_plural(len(assignments), 'variable')} ({_plural(values, 'value')})"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
