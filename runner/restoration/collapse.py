"""Puts the rows of numbered layers that agree into one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from runner.restoration.rows import Row

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
