"""A plan in words: a row for each variable, a summary, and the table that a terminal shows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from runner.checkpoints.reader import CheckpointSpec
from runner.restoration.fitting import SourceTensor
from runner.restoration.plan import Assignment, RestorationPlan
from runner.restoration.problems import plural
from runner.restoration.variables import VariableSpec


@dataclass(frozen=True)
class Row:
    """One variable, or several that agree.

    Attributes:
      variable: its name; of several `body/layer_{0..11}/kernel`.
      shape: e.g. `3x3x8`, or `scalar`.
      dtype: its element type.
      origin: where its value comes from.
      training: whether and how it trains, empty for what never trains.
      notes: remarks, e.g. on a cast.
      source: the scaffold it is restored from, empty when it is not.
      count: how many variables.
      bytes: their size together.
    """

    variable: str
    shape: str
    dtype: str
    origin: str
    training: str
    notes: str
    source: str
    count: int
    bytes: int


def report_rows(plan: RestorationPlan, *, full: bool = False) -> list[Row]:
    """Returns the rows of a report: numbered layers that agree as one, with `full` each alone."""
    rows = [
        Row(
            assignment.variable.name,
            "x".join(map(str, assignment.variable.tensor.shape)) or "scalar",
            assignment.variable.tensor.dtype,
            _origin(assignment, plan),
            _training(assignment),
            "; ".join(assignment.notes),
            assignment.pieces[0].source if assignment.pieces else "",
            1,
            assignment.variable.tensor.bytes,
        )
        for assignment in plan.assignments
    ]
    return rows if full else collapse(rows)


def _origin(assignment: Assignment, plan: RestorationPlan) -> str:
    if not assignment.pieces:
        if assignment.scaffold in plan.unusable:
            return f"{assignment.scaffold}: its checkpoint cannot be used"
        return f"initializer {assignment.variable.initializer}"
    return ", ".join(_piece(piece, plan) for piece in assignment.pieces)


def _piece(piece: SourceTensor, plan: RestorationPlan) -> str:
    how = f" ({', '.join(piece.steps)})" if piece.steps else ""
    names = " + ".join(piece.names)
    return f"{piece.source}: {names}{at_step(plan.sources[piece.source])}{how}"


def at_step(source: CheckpointSpec | None) -> str:
    """Returns ` @ step 7`, or nothing for a checkpoint without a step."""
    return "" if source is None or source.step is None else f" @ step {source.step}"


def _training(assignment: Assignment) -> str:
    variable = assignment.variable
    if not variable.trainable:
        return "frozen" if variable.frozen else ""
    text = "trainable"
    if assignment.freeze_until_step:
        text += f" from step {assignment.freeze_until_step}"
    if assignment.learning_rate_multiplier != 1.0:
        text += f", learning rate x{assignment.learning_rate_multiplier:g}"
    return text


_NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True)
class _Split:
    """A row whose strings are split at numbers: odd places hold numbers, or ranges of them."""

    row: Row
    name: tuple[str, ...]
    others: tuple[str, ...]


def collapse(rows: Iterable[Row]) -> list[Row]:
    """Joins rows whose names differ in one number, repeatedly from the innermost number.

    They must agree in all else, but for numbers in the origin and the notes that are the same as
    the name's or differ by the same amount throughout: `layer_{0..11}` from `block{1..12}`.

    Args:
      rows: one for each variable; the order is that of the first of those joined.
    """
    split = [
        _Split(
            row,
            tuple(_NUMBER.split(row.variable)),
            tuple(_NUMBER.split(f"{row.origin}\n{row.notes}")),
        )
        for row in rows
    ]
    for turn in range(max((len(each.name) // 2 for each in split), default=0)):
        split = _join(split, turn)
    result = []
    for each in split:
        origin, _, notes = "".join(each.others).partition("\n")
        result.append(replace(each.row, variable="".join(each.name), origin=origin, notes=notes))
    return result


def _join(rows: Sequence[_Split], turn: int) -> list[_Split]:
    """Joins over the name's number at place `turn`, counted from the right."""
    groups: dict[object, list[int]] = {}
    for position, each in enumerate(rows):
        place = len(each.name) - 2 - 2 * turn
        key: object = position
        if place >= 1 and each.name[place].isdigit():
            key = (
                each.name[:place],
                each.name[place + 1 :],
                tuple("#" if part.isdigit() else part for part in each.others),
                (each.row.shape, each.row.dtype, each.row.training, each.row.source),
            )
        groups.setdefault(key, []).append(position)
    joined: dict[int, _Split] = {}
    for positions in groups.values():
        group = [rows[position] for position in positions]
        one = _joined(group, len(group[0].name) - 2 - 2 * turn) if len(group) > 1 else None
        if one is None:
            joined.update(zip(positions, group, strict=True))
        else:
            joined[positions[0]] = one
    return [joined[position] for position in sorted(joined)]


def _joined(group: Sequence[_Split], place: int) -> _Split | None:
    """Returns the rows as one; None when other numbers do not change along with the name's."""
    own = [int(each.name[place]) for each in group]
    if len(set(own)) < len(own):
        return None
    others = list(group[0].others)
    for at, part in enumerate(others):
        values = [each.others[at] for each in group]
        if not part.isdigit() or len(set(values)) == 1:
            continue
        if len({int(value) - number for value, number in zip(values, own, strict=True)}) > 1:
            return None
        others[at] = _ranges(values)
    name = list(group[0].name)
    name[place] = _ranges([each.name[place] for each in group])
    count, size = (sum(getattr(each.row, key) for each in group) for key in ("count", "bytes"))
    return _Split(replace(group[0].row, count=count, bytes=size), tuple(name), tuple(others))


def _ranges(numbers: Sequence[str]) -> str:
    """Returns e.g. `{0..3,7}`."""
    runs: list[list[str]] = []
    for number in sorted(numbers, key=int):
        if runs and int(number) == int(runs[-1][-1]) + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = (run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)
    return "{" + ",".join(texts) + "}"


@dataclass(frozen=True)
class VariablePlacement:
    """Where the variables of a graph are in a cluster.

    Attributes:
      strategy: how they were spread.
      devices: variable name -> device, such as `/job:ps/task:0`.
    """

    strategy: str
    devices: Mapping[str, str]

    @property
    def title(self) -> str:
        """The heading of a report on it."""
        return f"placement on the cluster ({self.strategy})"

    def by_device(self, plan: RestorationPlan) -> dict[str, list[VariableSpec]]:
        """Returns the variables of the plan that each device holds, by the device's name."""
        held: dict[str, list[VariableSpec]] = {name: [] for name in sorted(self.devices.values())}
        for assignment in plan.assignments:
            held[self.devices[assignment.variable.name]].append(assignment.variable)
        return held

    def lines(self, plan: RestorationPlan, *, full: bool) -> list[str]:
        """Returns a heading and a line for each device: how much it holds and, if `full`, what."""
        lines = [f"{self.title}:"]
        for device, held in self.by_device(plan).items():
            size = sum(each.tensor.bytes for each in held)
            lines.append(f"  {device}: {plural(len(held), 'variable')}, {size:,} bytes")
            if full:
                lines += [f"    {v.name}  {v.tensor.bytes:,} bytes" for v in held]
        return lines


# So many unused tensors of a source are named unless all are asked for.
_UNUSED = 5
# Nothing is folded in plain text.
_WIDEST = 1_000_000


def table(plan: RestorationPlan, *, full: bool = False) -> RenderableType:
    """Returns the variables, totals per source and the problems, for a rich console.

    If `full`, every variable has a row of its own and every unused tensor is named.
    """
    rows = report_rows(plan, full=full)
    with_notes = any(row.notes for row in rows)
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("variable", "shape", "dtype", "value from"):
        grid.add_column(name, overflow="fold", no_wrap=name == "dtype")
    grid.add_column("trainable", overflow="fold", min_width=len("trainable"))
    if with_notes:
        grid.add_column("notes", overflow="fold")
    for row in rows:
        cells = [
            Text(row.variable),
            Text(row.shape),
            Text(row.dtype),
            Text(row.origin, style="green" if row.source else ""),
            Text(row.training),
        ]
        grid.add_row(*cells, *([Text(row.notes)] if with_notes else []))
    lines = [Text(line) for line in (*summary(plan), *_details(plan, full))]
    problems = [str(problem) for problem in plan.problems]
    if problems:
        problems.insert(0, f"\n{plural(len(problems), 'problem')}:")
    return Group(grid, *lines, *(Text(problem, style="red") for problem in problems))


def text(plan: RestorationPlan, *, full: bool = False) -> str:
    """Returns the table as plain text in which nothing is folded."""
    console = Console(width=_WIDEST, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(table(plan, full=full))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def summary(plan: RestorationPlan) -> list[str]:
    """Returns a line for each source, one for the initialised rest and one for what is frozen."""
    lines = []
    for scaffold, source in plan.sources.items():
        owned = [assignment for assignment in plan.assignments if assignment.scaffold == scaffold]
        if scaffold in plan.unusable:
            lines.append(f"{scaffold}: {_count(owned)}, the checkpoint cannot be used")
            continue
        if source is None:
            lines.append(f"{scaffold}: {_count(owned)} from initializers, no checkpoint")
            continue
        restored = _count(plan.restored(scaffold))
        line = f"{scaffold}: {restored} from {source.path}{at_step(source)}"
        initialised = sum(not assignment.pieces for assignment in owned)
        if initialised:
            line += f", {initialised} initialised"
        line += f"; {plural(len(plan.unused[scaffold]), 'tensor')} unused"
        lines.append(line + (f"; {source.digest}" if source.digest else ""))
    rest = [assignment for assignment in plan.assignments if assignment.scaffold is None]
    lines.append(f"no scaffold: {_count(rest)} from initializers")
    frozen = [assignment for assignment in plan.assignments if _training(assignment) == "frozen"]
    if frozen:
        lines.append(f"frozen: {_count(frozen)}")
    return lines


def _details(plan: RestorationPlan, full: bool) -> Iterator[str]:
    for scaffold, unused in plan.unused.items():
        if unused:
            named = unused if full else unused[:_UNUSED]
            rest = f" and {len(unused) - len(named):,} more" if len(unused) > len(named) else ""
            yield f"unused in {scaffold}: {', '.join(named)}{rest}"
    yield from (f"note: {note}" for note in plan.notes)


def _count(assignments: Sequence[Assignment]) -> str:
    values = sum(math.prod(assignment.variable.tensor.shape) for assignment in assignments)
    return f"{plural(len(assignments), 'variable')} ({plural(values, 'value')})"
