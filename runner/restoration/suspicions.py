"""Warnings about plans in which everything fits and something is probably wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from runner.restoration.conversions import PadOrSlice, Reshape, Transpose
from runner.restoration.source_tensors import SourceTensor
from runner.restoration.variables import VariableSpec

_DIRECTION = re.compile(r"(^|/)(forward|backward)_")


def suspicions(pairs: Sequence[tuple[VariableSpec, SourceTensor]]) -> Iterator[str]:
    """Yields what the shapes and the layers of variables reveal, given what each takes."""
    takers: dict[tuple[str, ...], VariableSpec] = {}
    for variable, piece in pairs:
        if not (piece.conversions or _DIRECTION.search(variable.full_name)):
            continue
        name, names = variable.address or variable.full_name, " + ".join(piece.names)
        kinds = [type(step) for step in piece.conversions]
        if variable.flattened and kinds.count(Transpose) == 1 and Reshape not in kinds:
            size = "x".join(map(str, variable.flattened))
            last = (variable.flattened[-1], *variable.flattened[:-1])
            yield (
                f"{name} reads a flattened map of {size}, which PyTorch flattens channels first: "
                f"its rule should be '{names} | linear | unflatten{last}'"
            )
        for step in piece.conversions:
            if isinstance(step, PadOrSlice) and step.dropped:
                yield (
                    f"{name} takes the first {list(step.new)} of {list(step.old)} in {names} and "
                    f"drops the rest: a rule such as '{names} | [2:]' takes others"
                )
        other = takers.setdefault((piece.source, *piece.names), variable)
        if other.full_name != variable.full_name and _DIRECTION.sub("", other.full_name) == (
            _DIRECTION.sub("", variable.full_name)
        ):
            yield f"{name} and {other.full_name}, two directions, take the same {names}"
