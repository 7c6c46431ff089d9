"""What a plan says of each variable, in words, as rows that reports share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from runner.restoration import dtypes
from runner.restoration.plan import Assignment, RestorationPlan, SourceTensor


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
