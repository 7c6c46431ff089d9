"""Words for the tensors that Keras's weights files only number, as the model numbers its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from runner.checkpoints.formats.keras_names import leaves_of
from runner.mapping.layouts import Shape
from runner.planning.places import WeightsLayout

_VARS = "/vars/"
_COUNTED = re.compile(r"_\d+$")


def words_for_numbers(
    tensors: Mapping[str, Shape], model: WeightsLayout, variables: Mapping[str, Shape]
) -> dict[str, str]:
    """Returns tensor -> its name with a word for its number: `layers/lstm/cell/kernel`.

    A layer numbers its variables in the order in which it saves them, `save_own_variables` of its
    own included. A layer of the file numbers them as the layers of the model do that are in the
    same place of a layer of its class; else as its class of Keras's does. Where these say different
    things, or have other ranks, numbers stay.
    """
    groups: dict[str, dict[str, str]] = {}
    for name in tensors:
        group, vars_, number = f"/{name}".rpartition(_VARS)
        if vars_ and number.isdecimal():
            groups.setdefault(group[1:], {})[number] = name
    known = [*_known(model, variables)]
    words: dict[str, str] = {}
    for group, held in groups.items():
        numbers = sorted(held, key=int)
        shapes = [tensors[held[number]] for number in numbers]
        leaves = _leaves(_kind(group), shapes, known) or leaves_of(group, shapes)
        if len({*leaves}) == len(numbers):
            words |= {
                held[number]: f"{group}/{leaf}".lstrip("/")
                for number, leaf in zip(numbers, leaves, strict=True)
            }
    return words


# The group of a layer without numbers, and the leaves and ranks of its variables in their order.
_Known = tuple[tuple[str, ...], tuple[tuple[str, int], ...]]


def _known(model: WeightsLayout, variables: Mapping[str, Shape]) -> Iterator[_Known]:
    for group, held in model.variables.items():
        if not all(map(str.isdecimal, held)):
            continue
        names = [held[number] for number in sorted(held, key=int)]
        if all(name in variables for name in names):
            leaves = ((name.rpartition("/")[2], len(variables[name])) for name in names)
            yield _kind(group), tuple(leaves)


def _kind(group: str) -> tuple[str, ...]:
    return tuple(_COUNTED.sub("", part) for part in group.split("/"))


def _leaves(
    kind: tuple[str, ...], shapes: Sequence[Shape], known: Sequence[_Known]
) -> tuple[str, ...]:
    """Returns the leaves of the layers most like one, by the end of their groups; or none."""
    ranks = [len(shape) for shape in shapes]
    options: dict[int, set[tuple[str, ...]]] = {}
    for other, leaves in known:
        if [rank for _, rank in leaves] == ranks:
            pairs = zip(reversed(kind), reversed(other), strict=False)
            common = next(
                (at for at, (a, b) in enumerate(pairs) if a != b), min(len(kind), len(other))
            )
            options.setdefault(common, set()).add(tuple(leaf for leaf, _ in leaves))
    closest = max(options, default=0)
    return options[closest].pop() if closest and len(options[closest]) == 1 else ()
