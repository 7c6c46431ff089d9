"""The candidates that names propose for the variables of one call, before all others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.mapping.candidates import Candidate, are_apart
from runner.mapping.module_fitting import Taken
from runner.mapping.source import RecordedCheckpoint, Variable

# How many combinations of what names leave open are tried.
_MOST_COMBINATIONS = 400


def named(
    variables: Sequence[Variable], proposal: Mapping[str, Taken], source: RecordedCheckpoint
) -> Candidate | None:
    """Returns the candidate that names propose for the variables of one call, if for all."""
    taken = {v.name: proposal[v.name] for v in variables if v.name in proposal}
    if len(taken) < len(variables) or not are_apart([t for t in taken.values() if t.tensors]):
        return None
    modules = source.modules_of(name for one in taken.values() for name in one.tensors)
    is_sum = any(
        len(one.tensors) > 1 and not one.step and one.function == "sum" for one in taken.values()
    )
    joined = "sum" if is_sum else ""
    return Candidate(taken, modules, joined=joined, is_named=True) if modules else None


def chosen(
    variables: Sequence[Variable],
    choices: Mapping[str, Sequence[Taken]],
    source: RecordedCheckpoint,
) -> list[Candidate]:
    """Returns the candidates that names leave open: of one module each."""
    options = [choices.get(variable.name, ()) for variable in variables]
    some = (
        named(variables, {v.name: t for v, t in zip(variables, taken, strict=True)}, source)
        for taken in itertools.islice(itertools.product(*options), _MOST_COMBINATIONS)
    )
    return [replace(c, is_named=False) for c in some if c and len(c.modules) == 1]


def ordered(some: Sequence[Candidate], proposed: Candidate | None) -> list[Candidate]:
    """Returns candidates with the one that names propose first."""
    if proposed is None:
        return [*some]
    same = next((c for c in some if c.key == proposed.key), None)
    first = replace(same, is_named=True) if same else proposed
    return [first, *(c for c in some if c.key != first.key)]
