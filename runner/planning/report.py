"""The report of a plan on a terminal: its summary, a table of variables, and its problems.

The table has a row for each model variable, and one for each other class of state.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Group, RenderableType
from rich.text import Text

from runner.checkpoints.reader import CheckpointSpec
from runner.config.choices import WARM_STARTED, StateClass
from runner.console import Listing, as_text, plural, printable, shaped, short, sized, some_of
from runner.planning.plan import Assignment, RestorationPlan
from runner.runs.provenance import OF_MODEL

# Of more model variables than these, numbered layers that agree share a row.
_ONE_BY_ONE = 60
# How many unused tensors of a source are listed, unless in full.
_UNUSED = 5
_COLUMNS = ("variable", "shape", "count", "value from", "training", "notes")


def table(
    plan: RestorationPlan, *, full: bool = False, whole: bool = False, width: int | None = None
) -> RenderableType:
    """Returns the summary, variables, unused tensors and problems, for a rich console.

    With `full`, every variable and every unused tensor is listed; with `whole`, digests are whole.
    Rows of a table that would be wider than `width`, by default the console, become two lines.
    """
    rows: list[list[str | Text]] = [
        [
            row.variable,
            row.shape,
            str(row.count) if row.count > 1 else "",
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
        Listing(_COLUMNS, rows, ("count",), width),
        *map(Text, _details(plan, full)),
        *(Text(problem, style="red") for problem in problems),
    )


def text(
    plan: RestorationPlan, *, full: bool = False, whole: bool = True, width: int | None = None
) -> str:
    """Returns the table as plain text in which no line is folded."""
    return as_text(table(plan, full=full, whole=whole, width=width))


def summary(plan: RestorationPlan, *, whole: bool = False) -> list[str]:
    """Returns the headline, a line for each source, one for frozen variables, and the proofs."""
    lines = [_headline(plan)]
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
        initialised = sum(not assignment.source_tensor for assignment in owned)
        if initialised:
            line += f", {initialised} initialised"
        line += f"; {plural(len(plan.unused[scaffold]), 'tensor')} unused"
        digest = source.digest if whole else short(source.digest)
        lines.append(line + (f"; {digest}" if digest else ""))
    brought = [a for a in plan.assignments if a.variable.is_of_model and not a.source_tensor]
    if brought:
        digests = "".join(assignment.variable.model_digest for assignment in brought)
        digest = f"sha256:{hashlib.sha256(digests.encode()).hexdigest()}"
        shown = digest if whole else short(digest)
        lines.append(f"model: {_count(brought)} from values that the model brings along; {shown}")
    frozen = [assignment for assignment in plan.assignments if training(assignment) == "frozen"]
    if frozen:
        lines.append(f"frozen: {_count(frozen)}")
    return [*lines, *(f"warning: {warning}" for warning in plan.warnings)] + [
        line for proof in plan.proofs for line in proof.lines()
    ]


def _details(plan: RestorationPlan, full: bool) -> Iterator[str]:
    for scaffold, unused in plan.unused.items():
        if unused:
            shown = some_of(unused, len(unused) if full else _UNUSED)
            yield f"unused in {scaffold}: {printable(shown)}"
    yield from (f"note: {note}" for note in plan.notes)


def _count(assignments: Sequence[Assignment]) -> str:
    values = sum(math.prod(assignment.variable.tensor.shape) for assignment in assignments)
    return f"{plural(len(assignments), 'variable')} ({plural(values, 'value')})"


def model_counts(plan: RestorationPlan) -> dict[str, int]:
    """Counts weights and batch-norm statistics.

    Returns:
      `variables`; how many of them are `restored` from a checkpoint, at least in part; how many
      have values that the model has `brought` along; how many are `unknown`, as their scaffold's
      checkpoint cannot be used; `bytes` of all; `restored_bytes`; and from how many `checkpoints`
      anything is restored.
    """
    model = [
        assignment for assignment in plan.assignments if assignment.variable.state in WARM_STARTED
    ]
    restored = [assignment for assignment in model if assignment.source_tensor]
    paths = {source.path for name, source in plan.sources.items() if source and plan.restored(name)}
    return {
        "variables": len(model),
        "restored": len(restored),
        "brought": sum(a.variable.is_of_model and not a.source_tensor for a in model),
        "unknown": sum(assignment.scaffold in plan.unusable for assignment in model),
        "bytes": sum(assignment.variable.tensor.bytes for assignment in model),
        "restored_bytes": sum(assignment.variable.tensor.bytes for assignment in restored),
        "checkpoints": len(paths),
    }


def _headline(plan: RestorationPlan) -> str:
    """Returns e.g. `15 of 20 model variables (99.4 % of their bytes) from 2 checkpoints, 5 ...`."""
    count, parts = model_counts(plan), []
    restored, unknown = count["restored"], count["unknown"]
    if restored:
        share = math.floor(1000 * count["restored_bytes"] / max(1, count["bytes"])) / 10
        of = f"{restored:,} of {plural(count['variables'], 'model variable')}"
        source = plural(count["checkpoints"], "checkpoint")
        parts.append(f"{of} ({share:g} % of their bytes) from {source}")
    brought = count["brought"]
    rest = count["variables"] - restored - unknown - brought
    others = {
        kept_value(plan): rest,
        "from the model": brought,
        "from a checkpoint that cannot be used": unknown,
    }
    for origin, other in others.items():
        if other:
            parts.append(f"{other if parts else plural(other, 'model variable')} {origin}")
    problems = f"; {plural(len(plan.problems), 'problem')}" if plan.problems else ""
    return (", ".join(parts) or "no model variables") + problems


@dataclass(frozen=True)
class Row:
    """One variable, or several that agree or are of one class of state.

    Attributes:
      variable: its name; of several `body/layer_{0..11}/kernel`, or `26 optimizer slots`.
      shape: e.g. `3x3x8`, `scalar int64`, of several `8 .. 64`; for a class of state its size.
      origin: where its value comes from.
      training: whether and how it trains; empty for state that never trains.
      notes: remarks, e.g. on a cast.
      source: the scaffold it is restored from; empty if it is not.
      state: its class of state.
      scaffold: the scaffold that owns it, if any.
      bytes: their total size.
      count: how many variables share the row by their numbers.
    """

    variable: str
    shape: str
    origin: str
    training: str
    notes: str
    source: str
    state: StateClass
    scaffold: str | None
    bytes: int
    count: int = 1


def report_rows(plan: RestorationPlan, *, full: bool = False) -> list[Row]:
    """Returns a row for each model variable and one for each other class of state.

    With `full`, every variable has its own row. Otherwise, in a model with very many variables,
    numbered layers that agree share one.
    """
    aliases = {
        (scaffold, tensor): alias
        for scaffold, source in plan.sources.items()
        for alias, tensor in (source.aliases.items() if source else ())
    }
    rows = [
        Row(
            variable=assignment.variable.address or assignment.variable.name,
            shape=shaped(assignment.variable.tensor.shape, assignment.variable.tensor.dtype),
            origin=_origin(assignment, plan, aliases),
            training=training(assignment),
            notes="; ".join(assignment.notes),
            source=assignment.source_tensor.source if assignment.source_tensor else "",
            state=assignment.variable.state,
            scaffold=assignment.scaffold,
            bytes=assignment.variable.tensor.bytes,
        )
        for assignment in plan.assignments
    ]
    if full:
        return rows
    model = [row for row in rows if row.state in WARM_STARTED]
    others: dict[StateClass, list[Row]] = {}
    for row in rows:
        if row.state not in WARM_STARTED:
            others.setdefault(row.state, []).append(row)
    model = collapse(model) if len(model) > _ONE_BY_ONE else model
    return [*model, *(_folded(group, plan) for group in others.values())]


def _folded(rows: Sequence[Row], plan: RestorationPlan) -> Row:
    """Returns the variables of one class of state as one row."""
    if len(rows) == 1:
        return rows[0]
    unrestored = kept_value(plan).removeprefix("from ")
    origins = Counter(row.source or unrestored for row in rows)
    notes = {row.notes for row in rows if row.notes}
    size = sum(row.bytes for row in rows)
    return replace(
        rows[0],
        variable=plural(len(rows), rows[0].state.noun),
        shape=sized(size),
        origin=", ".join(origins)
        if len(origins) == 1
        else ", ".join(f"{count:,} {origin}" for origin, count in origins.items()),
        training="",
        notes=notes.pop() if len(notes) == 1 else f"{len(notes)} notes" * bool(notes),
        source="" if unrestored in origins else rows[0].source,
        bytes=size,
    )


def _origin(
    assignment: Assignment, plan: RestorationPlan, aliases: Mapping[tuple[str, str], str]
) -> str:
    """Returns e.g. `cnn`, `cnn: features/kernel (cast to float32)` or `GlorotUniform`.

    `aliases` are more readable names: scaffold and tensor -> alias.
    """
    variable = assignment.variable
    source_tensor = assignment.source_tensor
    if source_tensor is None:
        if assignment.scaffold in plan.unusable:
            return f"{assignment.scaffold}: its checkpoint cannot be used"
        return OF_MODEL if variable.is_of_model else variable.initializer or "unchanged"
    names = [aliases.get((source_tensor.source, name), name) for name in source_tensor.names]
    same = names in ([variable.full_name], [variable.address])
    how = f" ({', '.join(source_tensor.steps)})" if source_tensor.steps else ""
    return source_tensor.source + ("" if same else f": {' + '.join(names)}") + how


def at_step(source: CheckpointSpec | None) -> str:
    """Returns ` @ step 7`, or nothing for a checkpoint without a step."""
    return "" if source is None or source.step is None else f" @ step {source.step}"


def training(assignment: Assignment) -> str:
    """Returns whether and how it trains: `trains`, `trains from step 9`, `frozen`, or nothing."""
    variable = assignment.variable
    if not variable.trainable:
        return "frozen" if variable.frozen else ""
    how = ["trains"]
    if assignment.freeze_until_step:
        how.append(f"from step {assignment.freeze_until_step}")
    if assignment.learning_rate_multiplier != 1.0:
        how.append(f"at rate x{assignment.learning_rate_multiplier:g}")
    return " ".join(how)


def kept_value(plan: RestorationPlan) -> str:
    """Returns a description of where variables that are not restored get their values."""
    # Eager variables already have values, and their initializers are not known.
    eager = any(not assignment.variable.initializer for assignment in plan.assignments)
    return "unchanged" if eager else "from initializers"


# A number in a name, or what stands for several: `{0..3,7}`.
_NUMBER = re.compile(r"(\{[\d.,]+\}|\d+)")


def collapse(rows: Sequence[Row]) -> list[Row]:
    """Joins rows whose names differ in one number, repeatedly from the innermost number.

    Everything else must agree, except for shapes, of which the row has the first and the last; and
    numbers in the origin and the notes may differ from the number in the name by a constant:
    `layer_{0..11}` from `block{1..12}`. Rows that differ in a number alone come one after the
    other.
    """
    collapsed = list(rows)
    for turn in range(max((len(_NUMBER.findall(row.variable)) for row in rows), default=0)):
        groups: dict[object, list[Row]] = {}
        for index, row in enumerate(collapsed):
            groups.setdefault(_but_for_a_number(row, turn) or index, []).append(row)
        collapsed = [row for group in groups.values() for row in _joined(group, turn)]
    return collapsed


def _but_for_a_number(row: Row, turn: int) -> object:
    """Returns what rows that can be joined agree in; None where the name has too few numbers."""
    name = _NUMBER.split(row.variable)
    place = len(name) - 2 - 2 * turn
    others = re.sub(r"\d+", "#", f"{row.origin}\n{row.notes}")
    same = (others, row.training, row.source, row.scaffold)
    return (tuple(name[:place]), tuple(name[place + 1 :]), *same) if place > 0 else None


def _joined(group: Sequence[Row], turn: int) -> Sequence[Row]:
    """Returns the rows as one, or as they are if other numbers do not change with the name's."""
    if len(group) == 1:
        return group
    place = len(_NUMBER.split(group[0].variable)) - 2 - 2 * turn
    texts = [_NUMBER.split(f"{row.variable}\n{row.origin}\n{row.notes}") for row in group]
    numbers = [text[place] for text in texts]
    parts = []
    for values in zip(*texts, strict=True):
        pairs = zip(values, numbers, strict=True)
        if len(set(values)) == 1:
            parts.append(values[0])
        elif all(map(str.isdigit, values)) and len({int(n) - int(m) for n, m in pairs}) == 1:
            parts.append(_ranges(values))
        else:
            return group
    variable, origin, notes = "".join(parts).split("\n", 2)
    return [
        replace(
            group[0],
            variable=variable,
            shape=_shapes(group),
            origin=origin,
            notes=notes,
            bytes=sum(row.bytes for row in group),
            count=sum(row.count for row in group),
        )
    ]


def _shapes(group: Sequence[Row]) -> str:
    """Returns the shape of the rows, or the first and the last of several."""
    shapes = [shape for row in group for shape in row.shape.split(_TO)]
    return shapes[0] if len(set(shapes)) == 1 else f"{shapes[0]}{_TO}{shapes[-1]}"


_TO = " .. "


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
