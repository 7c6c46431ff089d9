"""What a plan says of each variable, in words, as rows that reports share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from runner.restoration import dtypes
from runner.restoration.plan import Assignment, RestorationPlan, SourceTensor
from runner.restoration.variables import VariableSpec


@dataclass(frozen=True)
class Row:
    """One variable, or several that agree.

    Attributes:
      variable: its name; of several `body/layer_{0..11}/kernel`.
      shape: e.g. `3x3x8`, or `scalar`.
      dtype: its element type.
      origin: where its value comes from.
      training: whether and how it trains, empty for what never does.
      notes: what a reader should know.
      restored: whether its value comes from a checkpoint.
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
    restored: bool
    source: str
    count: int
    bytes: int


def rows(plan: RestorationPlan) -> Iterator[Row]:
    """Yields a row for every variable, in the order of the graph."""
    for each in plan.assignments:
        tensor = each.variable.tensor
        yield Row(
            each.variable.name,
            shape_text(tensor.shape),
            tensor.dtype,
            origin(each, plan),
            training(each),
            "; ".join(each.notes),
            bool(each.pieces),
            each.pieces[0].source if each.pieces else "",
            1,
            dtypes.size_in_bytes(tensor.shape, tensor.dtype),
        )


def origin(assignment: Assignment, plan: RestorationPlan) -> str:
    """Returns in words where the variable's value comes from."""
    if not assignment.pieces:
        if assignment.scaffold in plan.unusable:
            return f"{assignment.scaffold}: its checkpoint cannot be used"
        return f"initializer {assignment.variable.initializer}"
    return ", ".join(_piece(each, plan) for each in assignment.pieces)


def steps(piece: SourceTensor) -> tuple[str, ...]:
    """Returns in words what happens to the tensors of a piece, in order."""
    combined = (piece.combination.describe(),) if piece.combination else ()
    return (*combined, *(each.describe() for each in piece.conversions))


def training(assignment: Assignment) -> str:
    """Returns `trainable` with its schedule, `frozen`, or nothing for what never trains."""
    variable = assignment.variable
    if not variable.trainable:
        return "frozen" if variable.frozen else ""
    text = "trainable"
    if assignment.freeze_until_step:
        text += f" from step {assignment.freeze_until_step}"
    if assignment.learning_rate_multiplier != 1.0:
        text += f", learning rate x{assignment.learning_rate_multiplier:g}"
    return text


def shape_text(shape: tuple[int, ...]) -> str:
    """Returns the shape as `3x3x8`, or `scalar`."""
    return "x".join(map(str, shape)) or "scalar"


def _piece(piece: SourceTensor, plan: RestorationPlan) -> str:
    source = plan.sources[piece.source]
    step = "" if source is None or source.step is None else f" @ step {source.step}"
    done = steps(piece)
    how = f" ({', '.join(done)})" if done else ""
    return f"{piece.source}: {' + '.join(piece.names)}{step}{how}"


# Texts are split into letters and numbers by turns: odd places hold numbers.
_NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True)
class _Split:
    """A row with its texts split; a number that is a range already is no number any more."""

    row: Row
    name: tuple[str, ...]
    others: tuple[str, ...]


def collapse(rows: Iterable[Row]) -> list[Row]:
    """Joins rows whose names differ in one number, again and again from the innermost number.

    They must agree in all else, but for numbers in the origin and the notes that are the same as
    the name's or differ by the same amount throughout: `layer_{0..11}` from `block{1..12}`.

    Args:
      rows: one for each variable; the order is that of the first of those joined.
    """
    split = [
        _Split(row, _parts(row.variable), _parts(f"{row.origin}\n{row.notes}")) for row in rows
    ]
    depth = max((len(each.name) // 2 for each in split), default=0)
    for turn in range(depth):
        split = _join(split, turn)
    return [_text(each) for each in split]


def _join(rows: Sequence[_Split], turn: int) -> list[_Split]:
    """Joins over the name's number at place `turn`, counted from the right."""
    groups: dict[object, list[int]] = {}
    for position, each in enumerate(rows):
        place = len(each.name) - 2 - 2 * turn
        if place < 1 or not each.name[place].isdigit():
            groups[position] = [position]
            continue
        row = each.row
        key = (
            each.name[:place],
            each.name[place + 1 :],
            tuple("#" if part.isdigit() else part for part in each.others),
            (row.shape, row.dtype, row.training, row.restored, row.source),
        )
        groups.setdefault(key, []).append(position)
    joined: dict[int, _Split] = {}
    for group in groups.values():
        members = [rows[position] for position in group]
        place = len(members[0].name) - 2 - 2 * turn
        one = _joined(members, place) if len(members) > 1 else None
        if one is None:
            joined.update(zip(group, members, strict=True))
        else:
            joined[group[0]] = one
    return [joined[position] for position in sorted(joined)]


def _joined(group: Sequence[_Split], place: int) -> _Split | None:
    """Returns the rows as one; None when other numbers do not go with the name's."""
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
    first = group[0].row
    row = replace(
        first,
        count=sum(each.row.count for each in group),
        bytes=sum(each.row.bytes for each in group),
    )
    return _Split(row, tuple(name), tuple(others))


def _ranges(numbers: Sequence[str]) -> str:
    """Returns e.g. `{0..3,7}`."""
    ordered = sorted(numbers, key=int)
    runs: list[list[str]] = []
    for number in ordered:
        if runs and int(number) == int(runs[-1][-1]) + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = (run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)
    return "{" + ",".join(texts) + "}"


def _parts(text: str) -> tuple[str, ...]:
    return tuple(_NUMBER.split(text))


def _text(split: _Split) -> Row:
    origin, _, notes = "".join(split.others).partition("\n")
    return replace(split.row, variable="".join(split.name), origin=origin, notes=notes)


@dataclass(frozen=True)
class VariablePlacement:
    """Where the variables of a graph are.

    Attributes:
      strategy: how they were spread.
      devices: variable name -> device, such as `/job:ps/task:0`.
    """

    strategy: str
    devices: Mapping[str, str]

    @property
    def title(self) -> str:
        """What a report of it is headed with."""
        return f"placement on the cluster ({self.strategy})"

    def shares(self, plan: RestorationPlan) -> list[Share]:
        """Returns what each device holds of a plan's variables, by the device's name."""
        by_device: dict[str, list[VariableSpec]] = {}
        for each in plan.assignments:
            by_device.setdefault(self.devices[each.variable.name], []).append(each.variable)
        return [Share(device, tuple(held)) for device, held in sorted(by_device.items())]

    def lines(self, plan: RestorationPlan, *, full: bool) -> list[str]:
        """Returns a heading, and a line for each device with how much it holds.

        Args:
          plan: the plan for the variables.
          full: whether to name every variable too.
        """
        lines = [f"{self.title}:"]
        for share in self.shares(plan):
            lines.append(f"  {share.device}: {share.count}, {share.bytes:,} bytes")
            if full:
                lines += [f"    {each.name}  {bytes_of(each):,} bytes" for each in share.variables]
        return lines


@dataclass(frozen=True)
class Share:
    """The variables of one device."""

    device: str
    variables: tuple[VariableSpec, ...]

    @property
    def bytes(self) -> int:
        """How much they are."""
        return sum(bytes_of(each) for each in self.variables)

    @property
    def count(self) -> str:
        """How many they are, in words."""
        return f"{len(self.variables):,} variable{'s' * (len(self.variables) != 1)}"


def bytes_of(variable: VariableSpec) -> int:
    """Returns the bytes of a variable; 0 for text."""
    return dtypes.size_in_bytes(variable.tensor.shape, variable.tensor.dtype)


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
