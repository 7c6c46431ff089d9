"""Tells which tensors a checkpoint lacks, and what to type where a regular rename finds them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config import ScaffoldConfig, ShapePolicy
from runner.errors import Problem
from runner.restoration.command_line import override, yaml
from runner.restoration.nearest_names import NearestNames
from runner.restoration.ownership import some
from runner.restoration.suggestions import Search, suggest

# So many are told one by one, with the nearest names; the rest in one problem.
SHOWN = 24


@dataclass(frozen=True)
class Miss:
    """A variable for which the checkpoint has no tensor.

    Attributes:
      variable: its name.
      wanted: the tensor's name that was looked for.
      shape: the variable's shape.
      renamed: whether a rule of the scaffold made the name.
      follows: the variable that it is a slot or an average of; None for a variable of its own.
      renameable: whether another rename of the variable may find what is missing.
      cause: why there is none, if there is more to say.
      remedy: what to do about it, where it is more than a name.
    """

    variable: str
    wanted: str
    shape: tuple[int, ...]
    renamed: bool = False
    follows: str | None = None
    renameable: bool = True
    cause: str = ""
    remedy: str = ""


def missing_problems(
    scaffold: str,
    config: ScaffoldConfig,
    source: CheckpointSpec,
    misses: Sequence[Miss],
    found: Mapping[str, str],
    taken: frozenset[str],
) -> list[Problem]:
    """Returns the problems of all that is missing: one, with its remedy, if a rename finds it.

    Args:
      scaffold: its name.
      config: its configuration.
      source: its checkpoint.
      misses: what the checkpoint lacks.
      found: variable name -> tensor name for what it does not lack.
      taken: the tensors that variables take.
    """
    own = [miss for miss in misses if miss.renameable]
    shapes = {miss.variable: miss.shape for miss in own}
    free = {name: spec for name, spec in _all_names(source).items() if spec.name not in taken}
    flexible = bool(config.vocabulary or config.convert) or config.shape in (
        ShapePolicy.pad_or_slice,
        ShapePolicy.init,
    )

    def fits(name: str, tensor: str) -> bool:
        return flexible or math.prod(free[tensor].shape) == math.prod(shapes[name])

    rules = suggest(Search(list(shapes), list(found), free, fits)) if own else None
    if rules is not None:
        lost = {miss.variable for miss in own}
        rest = [each for each in misses if not each.renameable and each.follows not in lost]
        return [_renamed(scaffold, config, source, own, rules), *_each(scaffold, source, rest)]
    return _each(scaffold, source, misses)


def _all_names(source: CheckpointSpec) -> dict[str, TensorSpec]:
    """Returns the tensors by every name that a rename may give."""
    others = {alias: source.tensors[name] for alias, name in source.aliases.items()}
    return {**source.tensors, **others}


def _renamed(
    scaffold: str,
    config: ScaffoldConfig,
    source: CheckpointSpec,
    misses: Sequence[Miss],
    rules: Mapping[str, str],
) -> Problem:
    key = f"scaffolds.{scaffold}.rename"
    command = override(key, rules)
    if any(miss.renamed for miss in misses):
        # What the command line adds comes last, after rules that match already.
        how = f"put first in {key}: {yaml('rename', rules)}"
    else:
        how = f"in YAML {yaml('rename', rules)}" + (f", or paste {command}" if command else "")
    nearest = NearestNames(_all_names(source))
    names = some([miss.variable for miss in misses])
    return Problem(
        f"scaffolds.{scaffold}: no tensors for {len(misses)} variables, {names}"
        if len(misses) > 1
        else f"scaffolds.{scaffold}: no tensor {misses[0].wanted!r} for the variable {names}",
        f"{source.path} holds {len(source.tensors)} tensors, none named "
        f"{some([miss.wanted for miss in misses])}; a rename finds all that is missing",
        how,
        nearest.find(misses[0].wanted),
    )


def _each(scaffold: str, source: CheckpointSpec, misses: Sequence[Miss]) -> list[Problem]:
    key = f"scaffolds.{scaffold}"
    every = _all_names(source)
    by_shape: dict[tuple[int, ...], NearestNames] = {}

    def nearest(miss: Miss) -> tuple[str, ...]:
        if miss.shape not in by_shape:
            same = [name for name, spec in every.items() if spec.shape == miss.shape]
            by_shape[miss.shape] = NearestNames(same or every)
        return by_shape[miss.shape].find(miss.wanted)

    remedy = f"map the name in {key}.rename, exclude the variable, or set ++{key}.missing=init"
    problems = [
        Problem(
            f"{key}: no tensor {miss.wanted!r} for the variable {miss.variable}",
            miss.cause or f"{source.path} holds {len(source.tensors)} tensors, none of that name",
            miss.remedy or remedy,
            nearest(miss),
        )
        for miss in misses[:SHOWN]
    ]
    rest = misses[SHOWN:]
    if rest:
        problems.append(
            Problem(
                f"{key}: no tensors for {len(rest):,} more variables, "
                f"{some([miss.variable for miss in rest])}",
                f"only for the first {SHOWN} are the nearest names sought and shown",
                remedy,
            )
        )
    return problems
