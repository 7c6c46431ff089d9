"""The rows of a plan: one for each model variable, one for each other class of state."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.checkpoints.reader import CheckpointSpec
from runner.console import plural, shaped, sized
from runner.restoration.plan import Assignment, RestorationPlan
from runner.restoration.variables import WARM_STARTED, StateClass

# Of more model variables than these, numbered layers that agree share a row.
_ONE_BY_ONE = 60


def kept_value(plan: RestorationPlan) -> str:
    """Returns a description of where variables that are not restored get their values."""
    # Eager variables already have values, and their initializers are not known.
    eager = any(not assignment.variable.initializer for assignment in plan.assignments)
    return "unchanged" if eager else "from initializers"


@dataclass(frozen=True)
class Row:
    """One variable, or several that agree or are of one class of state.

    Attributes:
      variable: its name; of several `body/layer_{0..11}/kernel`, or `26 optimizer slots`.
      shape: e.g. `3x3x8`, `scalar int64`; for a class of state its size.
      origin: where its value comes from.
      training: whether and how it trains; empty for state that never trains.
      notes: remarks, e.g. on a cast.
      source: the scaffold it is restored from; empty if it is not.
      state: its class of state.
      scaffold: the scaffold that owns it, if any.
      count: how many variables.
      bytes: their total size.
    """

    variable: str
    shape: str
    origin: str
    training: str
    notes: str
    source: str
    state: StateClass
    scaffold: str | None
    count: int
    bytes: int


def report_rows(plan: RestorationPlan, *, full: bool = False) -> list[Row]:
    """Returns a row for each model variable and one for each other class of state.

    With `full`, every variable has its own row. Otherwise, in a model with very many variables,
    numbered layers that agree share one.
    """
    also = {
        name: {tensor: alias for alias, tensor in source.aliases.items()} if source else {}
        for name, source in plan.sources.items()
    }
    rows = [
        Row(
            assignment.variable.name,
            shaped(assignment.variable.tensor.shape, assignment.variable.tensor.dtype),
            _origin(assignment, plan, also),
            training(assignment),
            "; ".join(assignment.notes),
            assignment.pieces[0].source if assignment.pieces else "",
            assignment.variable.state,
            assignment.scaffold,
            1,
            assignment.variable.tensor.bytes,
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
    kept = kept_value(plan).removeprefix("from ")
    origins = Counter(row.source or kept for row in rows)
    notes = {row.notes for row in rows if row.notes}
    size = sum(row.bytes for row in rows)
    return replace(
        rows[0],
        variable=plural(len(rows), rows[0].state.value),
        shape=sized(size),
        origin=", ".join(origins)
        if len(origins) == 1
        else ", ".join(f"{count:,} {origin}" for origin, count in origins.items()),
        training="",
        notes=notes.pop() if len(notes) == 1 else f"{len(notes)} notes" * bool(notes),
        source="" if kept in origins else rows[0].source,
        count=len(rows),
        bytes=size,
    )


def _origin(
    assignment: Assignment, plan: RestorationPlan, also: Mapping[str, Mapping[str, str]]
) -> str:
    """Returns e.g. `cnn`, `cnn: features/kernel (cast to float32)` or `GlorotUniform`.

    `also` is scaffold -> tensor -> its more readable name.
    """
    variable = assignment.variable
    if not assignment.pieces:
        if assignment.scaffold in plan.unusable:
            return f"{assignment.scaffold}: its checkpoint cannot be used"
        return variable.initializer or "unchanged"
    origins = []
    for piece in assignment.pieces:
        names = [also[piece.source].get(name, name) for name in piece.names]
        same = names == [variable.full_name]
        how = f" ({', '.join(piece.steps)})" if piece.steps else ""
        origins.append(piece.source + ("" if same else f": {' + '.join(names)}") + how)
    return ", ".join(origins)


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


_NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True)
class _Split:
    """A row whose strings are split at numbers: odd places hold numbers, or ranges of them."""

    row: Row
    name: tuple[str, ...]
    others: tuple[str, ...]


def collapse(rows: Iterable[Row]) -> list[Row]:
    """Joins rows whose names differ in one number, repeatedly from the innermost number.

    Everything else must agree, except that numbers in the origin and the notes may differ from the
    number in the name by a constant: `layer_{0..11}` from `block{1..12}`.

    Args:
      rows: one for each variable; joined rows take the place of the first of them.
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
    """Joins rows that differ in the number at place `turn` of the name, from the right."""
    groups: dict[object, list[int]] = {}
    for position, each in enumerate(rows):
        place = len(each.name) - 2 - 2 * turn
        key: object = position
        if place >= 1 and each.name[place].isdigit():
            key = (
                each.name[:place],
                each.name[place + 1 :],
                tuple("#" if part.isdigit() else part for part in each.others),
                (each.row.shape, each.row.training, each.row.source, each.row.scaffold),
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
    """Returns the rows as one; None if other numbers do not change along with the name's."""
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
