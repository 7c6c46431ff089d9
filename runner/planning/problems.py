"""Words the problems of a plan for the person who has to fix them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from runner.checkpoints.reader import CheckpointSpec
from runner.config.schema import ScaffoldConfig
from runner.console import some_of
from runner.errors import Problem, nearest, ranked, similar
from runner.rules.named_conversions import NAMED_CONVERSIONS
from runner.rules.patterns import PATTERN_MAPS, compile_pattern
from runner.rules.translator import parse_rule

# How many variables a problem names, each with the nearest name in the checkpoint.
_NAMED = 3


@dataclass(frozen=True)
class Miss:
    """A variable for which the checkpoint has no tensor.

    Attributes:
      variable: its name.
      wanted: the name of the tensor.
      shape: the variable's shape.
      owner: the variable that it is a slot or an average of, if any.
      reason: why the checkpoint does not say which tensor is the variable's; empty if it lacks one.
    """

    variable: str
    wanted: str
    shape: tuple[int, ...]
    owner: str | None = None
    reason: str = ""


def _missing(key: str, misses: Sequence[Miss]) -> str:
    names = some_of([miss.variable for miss in misses], 3)
    if len(misses) > 1:
        return f"{key}: no tensors for {len(misses)} variables, {names}"
    return f"{key}: no tensor {misses[0].wanted!r} for the variable {names}"


def missing_problems(
    key: str, source: CheckpointSpec, misses: Sequence[Miss], *, taken: Collection[str]
) -> list[Problem]:
    """Returns the problem of all that is missing, with the nearest names of the same shape.

    Args:
      key: the scaffold's, e.g. `scaffolds.cnn`.
      source: the checkpoint.
      misses: the variables without a tensor.
      taken: the tensors that other variables take.
    """
    lost = {miss.variable for miss in misses}
    misses = [miss for miss in misses if miss.owner not in lost]
    reasons = dict.fromkeys(miss.reason for miss in misses if miss.reason)
    problems = [
        _uncertain(key, source, [miss for miss in misses if miss.reason == reason])
        for reason in reasons
    ]
    misses = [miss for miss in misses if not miss.reason]
    if not misses:
        return problems
    tensors = {**source.tensors}
    tensors |= {alias: source.tensors[name] for alias, name in source.other_names.items()}
    near = {}
    free = Counter(math.prod(spec.shape) for spec in tensors.values() if spec.name not in taken)
    sizes = Counter(math.prod(miss.shape) for miss in misses)
    alike_in_size = (sizes & free).total()
    for miss in misses[:_NAMED]:
        alike = [name for name, tensor in tensors.items() if tensor.shape == miss.shape] or tensors
        near[miss.variable] = (nearest if len(misses) == 1 else similar)(miss.wanted, alike)
    remedy = f"map the names in {key}.rename or rules, which `runner map MODEL {source.path}` finds"
    if len(misses) == 1:
        likely, choices = "none of that name", near[misses[0].variable]
    elif 2 * alike_in_size > len(misses):
        likely = f"of which {alike_in_size} have the sizes of these variables, under other names"
        choices = ()
    else:
        other = "another version of the model" if taken else "another model"
        likely = f"{len(taken)} of them used: it seems to belong to {other}"
        choices = tuple(f"{name}: {names[0]}" for name, names in near.items() if names)
    if any(name.endswith(".weight") for name in tensors) and misses[0].wanted == misses[0].variable:
        remedy = f"""set {key}.convert={{"*": torch}} if these are PyTorch's, {remedy}"""
    return [
        *problems,
        Problem(
            _missing(key, misses),
            f"{source.path} holds {len(source.tensors)} tensors, {likely}",
            f"{remedy}, name another checkpoint, exclude the variables, "
            f"or set ++{key}.missing=init",
            choices,
        ),
    ]


def _uncertain(key: str, source: CheckpointSpec, misses: Sequence[Miss]) -> Problem:
    """Returns the problem of variables for which the checkpoint does not say the tensor."""
    names = some_of([miss.variable for miss in misses], 3)
    others = [] if any(miss.owner for miss in misses) else [*source.tensors]
    return Problem(
        f"{key}: cannot tell which tensors are {names}",
        f"{source.path}: {misses[0].reason}",
        f"name their tensors in {key}.rename or rules, which `runner inspect "
        f"{source.path}` lists, exclude the variables, or set ++{key}.missing=init",
        nearest(misses[0].wanted, others) if others else (),
    )


def combined(key: str, problems: Iterable[Problem]) -> list[Problem]:
    """Returns problems with one remedy as one, with the choices of the first."""
    groups: dict[str, list[Problem]] = {}
    for problem in problems:
        groups.setdefault(problem.remedy, []).append(problem)
    joined = []
    for group in groups.values():
        states = list(dict.fromkeys(problem.state.removeprefix(f"{key}: ") for problem in group))
        causes = list(dict.fromkeys(problem.cause for problem in group))
        state = f"{key}: {some_of(states, _NAMED, '; ')}"
        cause = "; ".join(causes[:_NAMED])
        joined.append(replace(group[0], state=state, cause=cause))
    return joined


def unused_rule(where: str, rule: str, variables: Sequence[str]) -> Problem:
    """Returns the problem of a rule, e.g. in `scaffolds.cnn.rename`, that no variable uses."""
    return Problem(
        f"{where}: the rule {rule!r} is never used",
        "it matches no variable that the scaffold claims, or an earlier rule takes them first",
        "fix or delete the rule",
        nearest_patterns(rule, variables),
    )


def nearest_patterns(pattern: str, names: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """Returns modules (`head/`) and names that resemble a pattern that matches none of the names.

    Modules of the pattern's name come first, alone or within others, then those that its name and a
    `_` begin. If nothing resembles it, the outermost modules are returned, or the first names.
    """
    names = list(dict.fromkeys(names))
    modules = dict.fromkeys(
        name[: slash.end()] for name in names for slash in re.finditer("/", name)
    )
    bare = pattern.rstrip("*")
    word = bare.strip("/")
    same = [module for module in modules if f"/{module}".endswith(f"/{word}/")]
    same += [f"{word}_*"] * any(name.startswith(f"{word}_") for name in names)
    of_module = bare.endswith("/") or bare != pattern
    close = (*similar(f"{word}/", modules, count), *similar(bare, names, count))
    close = close if of_module else (*similar(bare, names, count), *close)
    outermost = [module for module in modules if module.count("/") == 1]
    choices = [*dict.fromkeys((*same, *close))] or outermost or names
    star = "*" if bare != pattern else ""
    return tuple(f"{choice}{star}" if choice in modules else choice for choice in choices[:count])


def bad_rules(scaffold: str, config: ScaffoldConfig) -> list[Problem]:
    """Returns the problems of patterns, expressions and named conversions that are not valid."""
    problems = []
    for part in ("rename", *PATTERN_MAPS, "rules"):
        for key, value in getattr(config, part).items():
            try:
                if part == "rules":
                    parse_rule(key, value)
                else:
                    compile_pattern(key, value if part == "rename" else "")
            except ValueError as error:
                problems.append(bad_pattern(f"scaffolds.{scaffold}.{part}: {key}: {value}", error))
    return problems + [
        Problem(
            f"scaffolds.{scaffold}.convert: {name!r} is not a named conversion",
            "it is misspelt, or written for another version",
            "name one of those below",
            ranked(name, NAMED_CONVERSIONS),
        )
        for name in dict.fromkeys(config.convert.values())
        if name not in NAMED_CONVERSIONS
    ]


def bad_pattern(state: str, error: ValueError) -> Problem:
    """Returns the problem of a pattern, or a rule, that is not valid."""
    remedy = "write it as docs/reference/restoration.md describes"
    return Problem(state, str(error), remedy)
