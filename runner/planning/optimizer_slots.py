"""Finds the slots of a Keras optimizer in a weights file, which only numbers them.

A file has an optimizer's variables in the order in which the optimizer made them: slots for every
variable that trained, in the order of the model that was saved. They belong to these variables, so
the order that fits the file is looked for: layers in lists are numbered in their order, a `.keras`
archive has the model's configuration, and every slot has a shape. Where more than one order fits,
the file does not say whose a slot is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from runner.checkpoints.reader import CheckpointSpec
from runner.planning.variables import owner_of

OPTIMIZER = "optimizer"
# A program sets it itself, whatever the source's optimizer had.
LEARNING_RATE = "learning_rate"
# The state of a `LossScaleOptimizer` itself is named after its inner optimizer and this.
LOSS_SCALE = "/loss_scale/"
_OF_LOSS_SCALE = ("iterations", LEARNING_RATE, "step_counter", "dynamic_scale")
_INNER = f"{OPTIMIZER}/inner_optimizer"
_COUNTED = re.compile(r"_\d+$")
# So many choices are tried before a file counts as one that does not say it.
_MAX_TRIED = 100_000

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Trained:
    """A variable of a file that may have trained: its tensor, and the model's in its place."""

    tensor: str
    variable: str
    shape: Shape


# The variables of one layer, in their order.
Block: TypeAlias = tuple[Trained, ...]


@dataclass(frozen=True)
class FileOrder:
    """The variables of a file that may have trained.

    Attributes:
      chains: sequences of layers whose order is known; the order among the chains is not.
      variables: the names of the model's variables, to which slots belong.
    """

    chains: Sequence[Sequence[Block]] = ()
    variables: frozenset[str] = frozenset()


class UncertainError(ValueError):
    """A file does not say whose its slots are; the message says why."""


@dataclass
class _Section:
    """Variables that an optimizer made together: one for all, or slots for every trained variable.

    Attributes:
      shared: the name of the one for all; empty for slots.
      slots: trained variable -> end of a slot's name -> its shape.
    """

    shared: str = ""
    slots: dict[str, dict[str, Shape]] = field(default_factory=dict)


@dataclass(frozen=True)
class Slots:
    """The variables of a built Keras optimizer, without its learning rate.

    Attributes:
      kind: the optimizer's class, e.g. `AdamW`; within a `LossScaleOptimizer` the inner one's.
      shapes: name -> shape, in the order of creation, for which the trained variables are in the
        model's order. Slots are named after their variables.
    """

    kind: str
    shapes: Mapping[str, Shape]

    def named(self, spec: CheckpointSpec, order: FileOrder | None = None) -> CheckpointSpec:
        """Returns the spec of a weights file with names of its optimizer's tensors as aliases.

        A slot is named after the tensor that it belongs to: `layers/dense/vars/0/Adam/momentum`.
        State that is kept once is named as in `shapes`. Where the file does not say it, there are
        none, and `unnamed_slots` of the spec says why.
        """
        holder = _INNER if _INNER in spec.layers else OPTIMIZER
        stored = _COUNTED.sub("", spec.layers.get(holder, ""))
        if order is None or not stored:
            return replace(spec, unnamed_slots="it holds no optimizer") if order else spec
        try:
            if stored.replace("_", "").lower() != self.kind.lower():
                raise UncertainError(f"its optimizer is {stored!r}, not {self.kind}")
            aliases = self._aliases(spec, holder, order)
        except UncertainError as error:
            return replace(spec, unnamed_slots=str(error))
        return replace(spec, aliases={**spec.aliases, **aliases})

    def _aliases(self, spec: CheckpointSpec, holder: str, order: FileOrder) -> dict[str, str]:
        outer = _numbered(spec, OPTIMIZER) if holder == _INNER else []
        named = ((f"{self.kind}{LOSS_SCALE}{name}", at) for at, name in enumerate(_OF_LOSS_SCALE))
        scale = {name: outer[at] for name, at in named if name in self.shapes and at < len(outer)}
        stored = _numbered(spec, holder)
        fitting = [*_solutions(spec, stored, self._sections(order.variables), order.chains)]
        if len(stored) > 1 and not spec.tensors[stored[1]].shape:
            # The second is the learning rate, unless that is a schedule.
            others = stored[:1] + stored[2:]
            fitting += _solutions(spec, others, self._sections(order.variables), order.chains)
        if len(fitting) != 1:
            several = "it does not say in which order its layers trained"
            raise UncertainError(several if fitting else "it trained other variables")
        return {**scale, **fitting[0]}

    def _sections(self, variables: frozenset[str]) -> list[_Section]:
        sections: list[_Section] = []
        for name, shape in self.shapes.items():
            owner = owner_of(name, variables)
            if name.startswith(f"{self.kind}{LOSS_SCALE}"):
                continue
            if owner is None:
                sections.append(_Section(name))
                continue
            slots = sections[-1].slots if sections else {}
            if not slots or (owner in slots and owner != [*slots][-1]):
                sections.append(_Section())  # An optimizer makes one kind for all, then the next.
            sections[-1].slots.setdefault(owner, {})[name.removeprefix(owner)] = shape
        return sections


def _numbered(spec: CheckpointSpec, group: str) -> list[str]:
    """Returns the tensors that a group numbers, in their order."""
    prefix = f"{group}/vars/"
    numbers = {
        int(number): tensor
        for tensor in spec.tensors
        if tensor.startswith(prefix) and (number := tensor.removeprefix(prefix)).isdecimal()
    }
    return [numbers[number] for number in sorted(numbers)]


def _solutions(
    spec: CheckpointSpec,
    tensors: Sequence[str],
    sections: Sequence[_Section],
    chains: Sequence[Sequence[Block]],
) -> Iterator[dict[str, str]]:
    """Yields up to two ways to name an optimizer's tensors that fit their shapes."""
    slots = [section.slots for section in sections if not section.shared]
    kinds = [{tuple(ends) for ends in held.values()} for held in slots]
    is_regular = all(len(ends) == 1 for ends in kinds)
    if not is_regular and len(slots) > 1:
        raise UncertainError("its optimizer keeps slots of several kinds")
    # What is a column: all slots of one variable, or one slot where variables differ in number.
    widths = [len(next(iter(ends))) if is_regular else 1 for ends in kinds]
    count, rest = divmod(len(tensors) - (len(sections) - len(slots)), sum(widths) or 1)
    if rest or count < 0 or bool(count) != bool(slots):
        return
    shared, columns = dict[str, str](), [list[str]() for _ in range(count)]
    remaining, width = iter(tensors), iter(widths)
    for section in sections:
        if section.shared:
            shared[section.shared] = next(remaining)
            continue
        size = next(width)
        for column in columns:
            column += [next(remaining) for _ in range(size)]
    shapes = [tuple(spec.tensors[tensor].shape for tensor in column) for column in columns]
    blocks = [
        [tuple((trained, _ends(trained, slots)) for trained in block) for block in chain]
        for chain in chains
    ]
    for variables in _orders(blocks, shapes, is_regular=is_regular):
        flat = iter([tensor for column in columns for tensor in column])
        yield shared | {
            f"{trained.tensor}{end}": next(flat) for trained, ends in variables for end in ends
        }


def _ends(trained: Trained, slots: Sequence[Mapping[str, Mapping[str, Shape]]]) -> dict[str, Shape]:
    """Returns the ends of the names of a variable's slots, with their shapes."""
    if all(trained.variable in held for held in slots):
        return {end: shape for held in slots for end, shape in held[trained.variable].items()}
    # It does not train now; its slots have its shape if other slots have their variables'.
    others = [shapes for held in slots for shapes in held.values()]
    is_plain = all(len({*shapes.values()}) == 1 for shapes in others)
    is_regular = len({tuple(shapes) for shapes in others}) == len(slots)
    if not (is_plain and is_regular):
        return {}
    return {end: trained.shape for held in slots for end in next(iter(held.values()))}


_Named: TypeAlias = tuple[Trained, dict[str, Shape]]


def _orders(
    chains: Sequence[Sequence[Sequence[_Named]]],
    columns: Sequence[tuple[Shape, ...]],
    *,
    is_regular: bool,
) -> Iterator[list[_Named]]:
    """Yields up to two orders of variables whose slots have the shapes of all columns.

    The layers of a chain stay in their order. One that did not train has none.

    Raises:
      UncertainError: when there are too many to try.
    """
    needs = [[_columns_of(block, is_regular=is_regular) for block in chain] for chain in chains]
    may_skip = sum(len(need) for chain in needs for need in chain) > len(columns)
    pending: list[tuple[tuple[int, ...], int, tuple[tuple[int, int], ...]]]
    pending = [((0,) * len(chains), 0, ())]
    solutions = tried = 0
    while pending:
        state, at, taken = pending.pop()
        tried += 1
        if tried > _MAX_TRIED:
            raise UncertainError("it does not say in which order its many layers trained")
        if at == len(columns):
            yield [named for chain, number in taken for named in chains[chain][number]]
            solutions += 1
            if solutions == 2:
                return
            continue
        for number, start in enumerate(state):
            stop = len(needs[number]) if may_skip else min(start + 1, len(needs[number]))
            for block in range(start, stop):
                need = needs[number][block]
                if need and columns[at : at + len(need)] == need:
                    after = (*state[:number], block + 1, *state[number + 1 :])
                    pending.append((after, at + len(need), (*taken, (number, block))))


def _columns_of(block: Sequence[_Named], *, is_regular: bool) -> list[tuple[Shape, ...]]:
    """Returns the shapes of the slots of a layer's variables, column by column."""
    if is_regular:
        return [tuple(ends.values()) for _, ends in block]
    return [(shape,) for _, ends in block for shape in ends.values()]


def keras_slots(shapes: Mapping[str, Shape]) -> Slots | None:
    """Returns the slots of a Keras optimizer; None when the optimizer is not Keras's.

    Args:
      shapes: variable of the optimizer -> shape, in the order of creation.
    """
    shapes = {
        name: shape for name, shape in shapes.items() if not name.endswith(f"/{LEARNING_RATE}")
    }
    kind = next((name.rpartition("/")[0] for name in shapes if name.endswith("/iterations")), "")
    kind = kind.removesuffix(LOSS_SCALE.rstrip("/"))
    return Slots(kind, shapes) if kind else None
