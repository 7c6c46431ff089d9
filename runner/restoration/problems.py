"""Words the problems of a plan for the person who has to fix them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config.schema import ScaffoldConfig
from runner.config.spelling import override, yaml
from runner.errors import Problem, nearest, ranked, similar
from runner.restoration.named_conversions import NAMED_CONVERSIONS
from runner.restoration.patterns import PATTERN_MAPS, FirstMatch, Renames
from runner.restoration.rules import parse_rule

# How many variables a problem names, each with the nearest name in the checkpoint.
_NAMED = 3
# The most prefixes that a suggested rename may have.
_PREFIXES = 4


@dataclass(frozen=True)
class Miss:
    """A variable for which the checkpoint has no tensor.

    Attributes:
      variable: its name.
      wanted: the name of the tensor.
      shape: the variable's shape.
      owner: the variable that it is a slot or an average of, if any.
      renameable: whether a rename of the variable may find the tensor.
    """

    variable: str
    wanted: str
    shape: tuple[int, ...]
    owner: str | None = None
    renameable: bool = True


def missing_problems(
    key: str,
    source: CheckpointSpec,
    misses: Sequence[Miss],
    *,
    taken: Collection[str],
    not_renamed: Iterable[str],
) -> list[Problem]:
    """Returns the problem of all that is missing, and one with its remedy if a rename finds it.

    Args:
      key: the scaffold's, e.g. `scaffolds.cnn`.
      source: the checkpoint.
      misses: the variables without a tensor.
      taken: the tensors that other variables take.
      not_renamed: the variables whose tensors have their names, which a new rename may not change.
    """
    lost = {miss.variable for miss in misses}
    misses = [miss for miss in misses if miss.owner not in lost]
    renameable = [miss for miss in misses if miss.renameable]
    tensors = {**source.tensors}
    tensors |= {alias: source.tensors[name] for alias, name in source.other_names.items()}
    free = [name for name, tensor in tensors.items() if tensor.name not in taken]
    rules = suggest([miss.variable for miss in renameable], not_renamed, free)
    problems = []
    if rules is not None:
        problems.append(_with_rename(key, source, renameable, rules))
        misses = [miss for miss in misses if not miss.renameable]
    if misses:
        problems.append(_without_rename(key, source, misses, taken=taken, tensors=tensors))
    return problems


def suggest(
    missing: Sequence[str], not_renamed: Iterable[str], tensors: Iterable[str]
) -> dict[str, str] | None:
    """Returns prefix renames that map every missing name to a tensor, e.g. `{cnn/: features/}`.

    They match none of the names `not_renamed`. None if no change of one prefix finds all tensors.
    """
    if not missing:
        return None
    names, unchanged, first = set(tensors), list(not_renamed), missing[0]
    ends = [0, *(at + 1 for at, letter in enumerate(first) if letter == "/")]
    for old, rest in ((first[:end], first[end:]) for end in ends):
        for new in sorted(name.removesuffix(rest) for name in names if name.endswith(rest)):
            if not all(
                name.startswith(old) and new + name.removeprefix(old) in names for name in missing
            ):
                continue
            # A prefix that is only added is spelled out for each of the parts that get it.
            heads = {old} if old else {name[: name.find("/") + 1] or name for name in missing}
            rules = {head: new + head.removeprefix(old) for head in sorted(heads)}
            renames = Renames(rules)
            if len(rules) <= _PREFIXES and not any(renames.find(name) for name in unchanged):
                return rules
    return None


def _with_rename(
    key: str, source: CheckpointSpec, misses: Sequence[Miss], rules: Mapping[str, str]
) -> Problem:
    command = override(f"{key}.rename", rules)
    how = f"in YAML {yaml('rename', rules)}" + (f", or paste {command}" if command else "")
    return Problem(
        _missing(key, misses),
        f"{source.path} holds {len(source.tensors)} tensors, none named "
        f"{some([miss.wanted for miss in misses])}; a rename finds all that is missing",
        how,
        tuple(Renames(rules).apply(miss.variable) for miss in misses[:3]),
    )


def _missing(key: str, misses: Sequence[Miss]) -> str:
    names = some([miss.variable for miss in misses])
    if len(misses) > 1:
        return f"{key}: no tensors for {len(misses)} variables, {names}"
    return f"{key}: no tensor {misses[0].wanted!r} for the variable {names}"


def _without_rename(
    key: str,
    source: CheckpointSpec,
    misses: Sequence[Miss],
    *,
    taken: Collection[str],
    tensors: Mapping[str, TensorSpec],
) -> Problem:
    """Returns the problem of all that is missing, with the nearest names of the same shape."""
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
    return Problem(
        _missing(key, misses),
        f"{source.path} holds {len(source.tensors)} tensors, {likely}",
        f"{remedy}, name another checkpoint, exclude the variables, or set ++{key}.missing=init",
        choices,
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
        more = f"; and {len(states) - _NAMED:,} more" if len(states) > _NAMED else ""
        state, cause = f"{key}: {'; '.join(states[:_NAMED])}{more}", "; ".join(causes[:_NAMED])
        joined.append(replace(group[0], state=state, cause=cause))
    return joined


def unused_rule(where: str, rule: str, variables: Sequence[str]) -> Problem:
    """Returns the problem of a rule, e.g. in `scaffolds.cnn.rename`, that no variable uses."""
    return Problem(
        f"{where}: the rule {rule!r} is never used",
        "it matches no variable that the scaffold claims, or an earlier rule takes them first",
        "fix or delete the rule",
        nearest(rule, variables),
    )


def bad_rules(scaffold: str, config: ScaffoldConfig) -> list[Problem]:
    """Returns the problems of expressions and named conversions in rules that are not valid."""
    problems = []
    for part in ("rename", *PATTERN_MAPS):
        for key, value in getattr(config, part).items():
            try:
                (Renames if part == "rename" else FirstMatch)({key: value})
            except re.error as error:
                problems.append(bad_expression(f"scaffolds.{scaffold}.{part}", error))
    for key, value in config.rules.items():
        try:
            parse_rule(key, value)
        except ValueError as error:
            problems.append(
                Problem(
                    f"scaffolds.{scaffold}.rules: {key}: {value}",
                    str(error),
                    "write PATTERN: EXPRESSION as docs/reference/restoration.md describes",
                )
            )
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


def bad_expression(where: str, error: re.error) -> Problem:
    """Returns the problem of an expression, or a replacement, that Python does not compile."""
    return Problem(
        f"{where} holds {error.pattern!r}",
        f"not a regular expression, or not a replacement for one: {error}",
        r"fix it, or leave out `re:`; a replacement names groups as \1, \2 or \g<name>",
    )


def some(names: Sequence[str]) -> str:
    """Returns up to three of the names and how many more there are."""
    rest = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
