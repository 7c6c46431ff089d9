"""Plans from metadata alone where every variable's value comes from, and finds all problems."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config import Collision, Missing, ScaffoldConfig
from runner.errors import Problem, nearest
from runner.restoration.ownership import assign_owners
from runner.restoration.plan import Assignment, RestorationPlan, SourceTensor
from runner.restoration.selection import rename
from runner.restoration.variables import WARM_STARTED, VariableSpec


def make_plan(
    variables: Sequence[VariableSpec],
    scaffolds: Mapping[str, ScaffoldConfig],
    sources: Mapping[str, CheckpointSpec | None],
    collision: Collision = Collision.error,
) -> RestorationPlan:
    """Plans from metadata alone.

    Args:
      variables: every variable of the graph.
      scaffolds: scaffold name -> its configuration, in order of application.
      sources: for each of these scaffolds its checkpoint, or None to initialise.
      collision: what happens to a variable that two scaffolds own.

    Raises:
      ValueError: when `sources` does not name exactly the scaffolds.
    """
    if set(sources) != set(scaffolds):
        raise ValueError(f"sources {sorted(sources)} are not for scaffolds {sorted(scaffolds)}")
    candidates = [each for each in variables if each.state in WARM_STARTED]
    ownership = assign_owners([each.name for each in candidates], scaffolds, collision)
    problems = list(ownership.problems)
    assigned: dict[str, Assignment] = {}
    unused: dict[str, tuple[str, ...]] = {}
    for scaffold, config in scaffolds.items():
        owned = [each for each in candidates if ownership.owners.get(each.name) == scaffold]
        assignments, found = _assign(scaffold, config, owned, sources[scaffold])
        problems += found
        assigned |= {each.variable.name: each for each in assignments}
        unused[scaffold] = _unused(sources[scaffold], assignments)
    return RestorationPlan(
        tuple(assigned.get(each.name, Assignment(each)) for each in variables),
        dict(sources),
        unused,
        tuple(problems),
    )


def _assign(
    scaffold: str,
    config: ScaffoldConfig,
    owned: Sequence[VariableSpec],
    source: CheckpointSpec | None,
) -> tuple[list[Assignment], list[Problem]]:
    if source is None:
        return [Assignment(each, scaffold) for each in owned], []
    try:
        renamed = rename([each.name for each in owned], config.rename)
    except re.error as error:
        problem = Problem(f"scaffolds.{scaffold}.rename has {error.pattern!r}", str(error))
        return [], [problem]
    problems = [
        Problem(
            f"scaffolds.{scaffold}.rename: the rule {rule!r} is never used",
            "no owned variable has that name, or an earlier rule takes it first",
            "mend or delete the rule",
            nearest(rule, renamed.names),
        )
        for rule in renamed.unused
    ]
    assignments = []
    for variable in owned:
        wanted = renamed.names[variable.name]
        tensor = source.tensors.get(wanted)
        if tensor is None and config.missing is Missing.error:
            problems.append(_missing_tensor(scaffold, variable, wanted, source))
        elif tensor is not None:
            problems += _mismatches(scaffold, variable.tensor, tensor)
        pieces = (SourceTensor(scaffold, tensor),) if tensor else ()
        assignments.append(Assignment(variable, scaffold, pieces))
    return assignments, problems


def _missing_tensor(
    scaffold: str, variable: VariableSpec, wanted: str, source: CheckpointSpec
) -> Problem:
    same = [name for name, spec in source.tensors.items() if spec.shape == variable.tensor.shape]
    return Problem(
        f"scaffolds.{scaffold}: no tensor {wanted!r} for the variable {variable.name}",
        f"{source.path} holds {len(source.tensors)} tensors, none of that name",
        f"map the name in scaffolds.{scaffold}.rename, exclude the variable, or set "
        f"scaffolds.{scaffold}.missing=init",
        nearest(wanted, same or source.tensors),
    )


def _mismatches(scaffold: str, variable: TensorSpec, tensor: TensorSpec) -> list[Problem]:
    problems = []
    for what, ours, theirs in (
        ("shape", list(variable.shape), list(tensor.shape)),
        ("dtype", variable.dtype, tensor.dtype),
    ):
        if ours != theirs:
            problems.append(
                Problem(
                    f"scaffolds.{scaffold}: {variable.name} has {what} {ours}, but its tensor "
                    f"{tensor.name} has {theirs}",
                    f"a tensor restores a variable of the same {what}",
                    f"change the model, or exclude it in scaffolds.{scaffold}.variables.exclude",
                )
            )
    return problems


def _unused(source: CheckpointSpec | None, assignments: Sequence[Assignment]) -> tuple[str, ...]:
    if source is None:
        return ()
    used = {name for each in assignments for piece in each.pieces for name in piece.names}
    return tuple(name for name in source.tensors if name not in used)
