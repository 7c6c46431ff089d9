"""Tells which tensors a checkpoint lacks, and what to type where a regular rename finds them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config.choices import ShapePolicy
from runner.config.hydra_grammar import override, yaml
from runner.config.schema import ScaffoldConfig
from runner.errors import Problem
from runner.restoration.fitting import PATTERN_MAPS
from runner.restoration.layouts import NAMED_CONVERSIONS
from runner.restoration.ownership import bad_expression, some
from runner.restoration.patterns import Renames, compile_pattern
from runner.restoration.suggestions import NearestNames, Search, nearest_names, suggest

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


def combined(key: str, kind: str, found: Mapping[str, Problem]) -> list[Problem]:
    """Returns the problems of one kind, those of one dtype as one and of many the rest as one."""
    names, problems = list(found), list(found.values())
    if kind.startswith("dtype"):
        return [replace(problems[0], state=f"{problems[0].state}: {some(names)}")]
    rest = names[SHOWN:]
    if not rest:
        return problems
    return [
        *problems[:SHOWN],
        Problem(
            f"{key}: the same of {len(rest):,} more variables, {some(rest)}",
            f"only the first {SHOWN} are shown one by one",
            problems[0].remedy,
        ),
    ]


def unused_rule(where: str, rule: str, names: Sequence[str]) -> Problem:
    """The problem of a rename rule or another pattern that no variable used.

    Args:
      where: the mapping that holds it, e.g. `scaffolds.cnn.rename`.
      rule: its key.
      names: the names of the variables that it might have matched.
    """
    return Problem(
        f"{where}: the rule {rule!r} is never used",
        "it matches no variable that the scaffold claims, or an earlier rule takes them first",
        "mend or delete the rule",
        nearest_names(rule, names),
    )


def bad_expressions(scaffold: str, config: ScaffoldConfig) -> list[Problem]:
    """Returns a problem for each rule whose regular expression or replacement is not valid."""
    problems = []
    for key, value in config.rename.items():
        try:
            Renames({key: value})
        except re.error as error:
            problems.append(
                Problem(
                    f"scaffolds.{scaffold}.rename holds {error.pattern!r}",
                    f"not a regular expression, or no replacement for one: {error}",
                    r"mend it; a replacement names the groups of its rule as \1, \2 or \g<name>",
                )
            )
    for part in PATTERN_MAPS:
        for key in getattr(config, part):
            try:
                compile_pattern(key)
            except re.error as error:
                problems.append(bad_expression(f"scaffolds.{scaffold}.{part}", error))
    return problems


def unknown_conversions(scaffold: str, config: ScaffoldConfig) -> list[Problem]:
    """Returns a problem for each name in `convert` that no conversion has."""
    return [
        Problem(
            f"scaffolds.{scaffold}.convert: {name!r} is no named conversion",
            "it is misspelt, or written for another version",
            "name one of those below",
            nearest_names(name, NAMED_CONVERSIONS, count=len(NAMED_CONVERSIONS)),
        )
        for name in dict.fromkeys(config.convert.values())
        if name not in NAMED_CONVERSIONS
    ]
