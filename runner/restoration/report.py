"""Shows a restoration plan as a table and as summary lines."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from runner.restoration.plan import Assignment, RestorationPlan


def origin(assignment: Assignment, plan: RestorationPlan) -> str:
    """Returns in words where the variable's value comes from."""
    if not assignment.pieces:
        return f"initializer {assignment.variable.initializer}"
    parts = []
    for piece in assignment.pieces:
        source = plan.sources[piece.source]
        step = "" if source is None or source.step is None else f" @ step {source.step}"
        parts.append(f"{piece.source}: {' + '.join(piece.names)}{step}")
    return ", ".join(parts)


def table(plan: RestorationPlan) -> RenderableType:
    """Returns every variable, totals per source and the problems, for a rich console."""
    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    rows.add_column("variable", overflow="fold")
    rows.add_column("shape", overflow="fold")
    rows.add_column("dtype")
    rows.add_column("value from", overflow="fold")
    rows.add_column("trainable")
    for each in plan.assignments:
        variable = each.variable
        rows.add_row(
            Text(variable.name),
            Text(_shape(variable.tensor.shape)),
            variable.tensor.dtype,
            Text(origin(each, plan), style="green" if each.pieces else ""),
            _trains(each),
        )
    lines = [Text(line) for line in summary(plan)]
    problems = [Text(line, style="red") for line in problem_lines(plan)]
    return Group(rows, *lines, *problems)


def text(plan: RestorationPlan) -> str:
    """Returns the table as plain text, wide enough that nothing is folded."""
    console = Console(width=_width(plan), color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(table(plan))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def summary(plan: RestorationPlan) -> list[str]:
    """Returns a line for each source, one for the initialised rest and one for what is frozen."""
    lines = []
    for scaffold, source in plan.sources.items():
        restored = plan.restored(scaffold)
        owned = [each for each in plan.assignments if each.scaffold == scaffold]
        initialised = len(owned) - len(restored)
        line = f"{scaffold}: {_count(restored)}"
        if source is None:
            line = f"{scaffold}: {_count(owned)} from initializers, no checkpoint"
        else:
            step = "" if source.step is None else f" @ step {source.step}"
            line += f" from {source.path}{step}"
            if initialised:
                line += f", {initialised} initialised"
            line += f"; {len(plan.unused[scaffold])} tensors unused"
        lines.append(line)
    rest = [each for each in plan.assignments if each.scaffold is None]
    lines.append(f"no scaffold: {_count(rest)} from initializers")
    frozen = [each for each in plan.assignments if _trains(each) == "frozen"]
    if frozen:
        lines.append(f"frozen: {_count(frozen)}")
    return lines


def problem_lines(plan: RestorationPlan) -> Iterator[str]:
    """Yields a heading and the problems, or nothing."""
    if plan.problems:
        count = len(plan.problems)
        yield f"\n{count} problem{'s' if count > 1 else ''}:"
        yield from (str(problem) for problem in plan.problems)


def _trains(each: Assignment) -> str:
    if each.variable.trainable:
        return "trainable"
    return "frozen" if each.variable.frozen else ""


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _count(assignments: tuple[Assignment, ...] | list[Assignment]) -> str:
    values = sum(math.prod(each.variable.tensor.shape) for each in assignments)
    return f"{len(assignments)} variables ({values:,} values)"


def _width(plan: RestorationPlan) -> int:
    longest = max((len(each.variable.name) for each in plan.assignments), default=0)
    origins = max((len(origin(each, plan)) for each in plan.assignments), default=0)
    lines = max(map(len, [*summary(plan), *problem_lines(plan)]), default=0)
    return max(80, longest + origins + 60, lines + 1)
