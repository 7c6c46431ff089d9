"""The candidates that names propose or leave open for the variables of one call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from runner.mapping.candidates import MOST_COMBINATIONS, Candidate, are_apart
from runner.mapping.layouts import Variable, ways
from runner.mapping.module_fitting import Taken
from runner.mapping.source import RecordedCheckpoint


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
        for taken in itertools.islice(itertools.product(*options), MOST_COMBINATIONS)
    )
    return [replace(c, is_named=False) for c in some if c and len(c.modules) == 1]


def ordered(
    some: Sequence[Candidate],
    proposed: Candidate | None,
    variables: Sequence[Variable],
    source: RecordedCheckpoint,
) -> list[Candidate]:
    """Returns candidates with the one that names propose first, then its other layouts."""
    if proposed is None:
        return [*some]
    same = next((c for c in some if c.key == proposed.key), None)
    first = replace(same, is_named=True) if same else proposed
    before = [first, *_laid_out(first, variables, source)]
    keys = {candidate.key for candidate in before}
    return [*before, *(c for c in some if c.key not in keys)]


def _laid_out(
    candidate: Candidate, variables: Sequence[Variable], source: RecordedCheckpoint
) -> Iterator[Candidate]:
    """Yields a candidate with all square parameters of a block in one layout.

    The file's layout is that of its layers, and shapes do not tell.
    """
    steps = {
        variable.name: [step for cut, step, _ in ways(variable, source.tensors[taken.tensors[0]])]
        for variable in variables
        for taken in [candidate.taken[variable.name]]
        if len(taken.tensors) == 1 and not taken.cut
    }
    square = [name for name, some in steps.items() if len(some) > 1]
    layouts = dict.fromkeys(step for name in square for step in steps[name])
    for step in layouts if len(square) > 1 else ():
        taken = {
            name: replace(one, step=step) if name in square and step in steps[name] else one
            for name, one in candidate.taken.items()
        }
        if taken != candidate.taken:
            yield replace(candidate, taken=taken, is_named=False)
