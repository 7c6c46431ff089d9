"""The report of a plan on a terminal: its summary, a table of variables, and its problems."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from runner.console import Listing, as_text, plural, short
from runner.restoration.plan import Assignment, RestorationPlan
from runner.restoration.rows import at_step, kept_value, report_rows, training
from runner.restoration.variables import WARM_STARTED, VariableSpec


@dataclass(frozen=True)
class ModelState:
    """Where the model's variables come from: weights and batch-norm statistics.

    Attributes:
      variables: how many there are.
      restored: how many are restored from a checkpoint, at least in part.
      unknown: how many belong to a scaffold whose checkpoint cannot be used.
      bytes: their total size.
      restored_bytes: the total size of the restored ones.
      checkpoints: how many checkpoints they are restored from.
    """

    variables: int
    restored: int
    unknown: int
    bytes: int
    restored_bytes: int
    checkpoints: int


def model_state(plan: RestorationPlan) -> ModelState:
    """Counts the model's variables and bytes."""
    model = [each for each in plan.assignments if each.variable.state in WARM_STARTED]
    restored = [each for each in model if each.pieces]
    sources = {piece.source for each in restored for piece in each.pieces}
    return ModelState(
        len(model),
        len(restored),
        sum(each.scaffold in plan.unusable for each in model),
        sum(each.variable.tensor.bytes for each in model),
        sum(each.variable.tensor.bytes for each in restored),
        len({spec.path for name, spec in plan.sources.items() if spec and name in sources}),
    )


def headline(plan: RestorationPlan) -> str:
    """Returns e.g. `15 of 20 model variables (99.4 % of their bytes) from 2 checkpoints, 5 ...`."""
    state, parts = model_state(plan), []
    rest = state.variables - state.restored - state.unknown
    if state.restored:
        share = math.floor(1000 * state.restored_bytes / max(1, state.bytes)) / 10
        of = f"{state.restored:,} of {plural(state.variables, 'model variable')}"
        source = plural(state.checkpoints, "checkpoint")
        parts.append(f"{of} ({share:g} % of their bytes) from {source}")
    others = {kept_value(plan): rest, "from a checkpoint that cannot be used": state.unknown}
    for origin, count in others.items():
        if count:
            parts.append(f"{count if parts else plural(count, 'model variable')} {origin}")
    problems = f"; {plural(len(plan.problems), 'problem')}" if plan.problems else ""
    return (", ".join(parts) or "no model variables") + problems


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
        """Returns a heading and, for each device, its size and, if `full`, its variables."""
        lines = [f"{self.title}:"]
        for device, held in self.by_device(plan).items():
            size = sum(each.tensor.bytes for each in held)
            lines.append(f"  {device}: {plural(len(held), 'variable')}, {size:,} bytes")
            if full:
                lines += [f"    {v.name}  {v.tensor.bytes:,} bytes" for v in held]
        return lines


# How many unused tensors of a source are listed, unless in full.
_UNUSED = 5
_COLUMNS = ("variable", "shape", "value from", "training", "notes")


def table(plan: RestorationPlan, *, full: bool = False, whole: bool = False) -> RenderableType:
    """Returns the summary, variables, unused tensors and problems, for a rich console.

    Args:
      plan: the plan.
      full: whether to list every variable and every unused tensor.
      whole: whether to show whole digests.
    """
    rows: list[list[str | Text]] = [
        [
            row.variable,
            row.shape,
            Text(row.origin, style="green" if row.source else ""),
            row.training,
            row.notes,
        ]
        for row in report_rows(plan, full=full)
    ]
    problems = [str(problem) for problem in plan.problems]
    if problems:
        problems.insert(0, f"\n{plural(len(problems), 'problem')}:")
    return Group(
        *map(Text, summary(plan, whole=whole)),
        Listing(_COLUMNS, rows),
        *map(Text, _details(plan, full)),
        *(Text(problem, style="red") for problem in problems),
    )


def text(plan: RestorationPlan, *, full: bool = False, whole: bool = True) -> str:
    """Returns the table as plain text without wrapping."""
    return as_text(table(plan, full=full, whole=whole))


def summary(plan: RestorationPlan, *, whole: bool = False) -> list[str]:
    """Returns the headline, a line for each source, and one for frozen variables."""
    lines = [headline(plan)]
    for scaffold, source in plan.sources.items():
        owned = [assignment for assignment in plan.assignments if assignment.scaffold == scaffold]
        if scaffold in plan.unusable:
            lines.append(f"{scaffold}: {_count(owned)}, the checkpoint cannot be used")
            continue
        if source is None:
            lines.append(f"{scaffold}: {_count(owned)} {kept_value(plan)}, no checkpoint")
            continue
        restored = _count(plan.restored(scaffold))
        line = f"{scaffold}: {restored} from {source.path}{at_step(source)}"
        initialised = sum(not assignment.pieces for assignment in owned)
        if initialised:
            line += f", {initialised} initialised"
        line += f"; {plural(len(plan.unused[scaffold]), 'tensor')} unused"
        digest = source.digest if whole else short(source.digest)
        lines.append(line + (f"; {digest}" if digest else ""))
    frozen = [assignment for assignment in plan.assignments if training(assignment) == "frozen"]
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
