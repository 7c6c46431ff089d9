"""The problems of a plan, worded for the person who has to fix them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config.schema import ScaffoldConfig
from runner.config.spelling import override, yaml
from runner.errors import Problem, nearest, ranked, similar
from runner.restoration.named_conversions import NAMED_CONVERSIONS
from runner.restoration.patterns import PATTERN_MAPS, Renames, compile_pattern

# How many variables a problem names, each with the nearest name in the checkpoint.
_NAMED = 3
# The most prefixes that a suggested rename may have.
_PREFIXES = 4
SAME_SHAPE = "a tensor restores a variable of the same shape"


@dataclass(frozen=True)
class Miss:
    """A variable for which the checkpoint has no tensor.

    Attributes:
      variable: its name.
      wanted: the tensor's name that was looked up.
      shape: the variable's shape.
      renamed: whether a rule of the scaffold made the name.
      follows: the variable that it is a slot or an average of; None for a variable of its own.
      renameable: whether another rename of the variable may find what is missing.
      cause: why there is none, if there is more to report.
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
    source: CheckpointSpec,
    misses: Sequence[Miss],
    found: Iterable[str],
    taken: Collection[str],
) -> list[Problem]:
    """Returns the problems of all that is missing: one, with its remedy, if a rename finds it.

    `found` are the variables whose tensors have their own names, `taken` the tensors that variables
    take.
    """
    lost = {miss.variable for miss in misses}
    misses = [miss for miss in misses if miss.follows not in lost]
    own = [miss for miss in misses if miss.renameable]
    every = _all_names(source)
    free = {name for name, tensor in every.items() if tensor.name not in taken}
    rules = suggest([miss.variable for miss in own], found, free)
    if rules is None:
        return _grouped(scaffold, source, misses, len(taken))
    rest = [miss for miss in misses if not miss.renameable]
    problems = _grouped(scaffold, source, rest, len(taken))
    return [_with_rename(scaffold, source, own, rules), *problems]


def suggest(
    missing: Sequence[str], found: Iterable[str], tensors: Iterable[str]
) -> dict[str, str] | None:
    """Returns prefix renames that map every missing name to a tensor, e.g. `{cnn/: features/}`.

    They leave `found` names alone. None when no change of one prefix finds all that is missing.
    """
    if not missing:
        return None
    names, kept, first = set(tensors), list(found), missing[0]
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
            if len(rules) <= _PREFIXES and not any(renames.find(name) for name in kept):
                return rules
    return None


def _all_names(source: CheckpointSpec) -> dict[str, TensorSpec]:
    """Returns the tensors by every name that a rename may give."""
    others = {alias: source.tensors[name] for alias, name in source.aliases.items()}
    return {**source.tensors, **others}


def _with_rename(
    scaffold: str, source: CheckpointSpec, misses: Sequence[Miss], rules: Mapping[str, str]
) -> Problem:
    key = f"scaffolds.{scaffold}.rename"
    command = override(key, rules)
    if any(miss.renamed for miss in misses):
        # What the command line adds comes last, after rules that match already.
        how = f"put first in {key}: {yaml('rename', rules)}"
    else:
        how = f"in YAML {yaml('rename', rules)}" + (f", or paste {command}" if command else "")
    return Problem(
        _missing(scaffold, misses),
        f"{source.path} holds {len(source.tensors)} tensors, none named "
        f"{some([miss.wanted for miss in misses])}; a rename finds all that is missing",
        how,
        tuple(Renames(rules).apply(miss.variable) for miss in misses[:3]),
    )


def _missing(scaffold: str, misses: Sequence[Miss]) -> str:
    names, key = some([miss.variable for miss in misses]), f"scaffolds.{scaffold}"
    if len(misses) > 1:
        return f"{key}: no tensors for {len(misses)} variables, {names}"
    return f"{key}: no tensor {misses[0].wanted!r} for the variable {names}"


def _grouped(
    scaffold: str, source: CheckpointSpec, misses: Sequence[Miss], taken: int
) -> list[Problem]:
    """Returns a problem for all that is missing for one reason; `taken` counts what is found."""
    groups: dict[tuple[str, str], list[Miss]] = {}
    for miss in misses:
        groups.setdefault((miss.cause, miss.remedy), []).append(miss)
    key, every = f"scaffolds.{scaffold}", _all_names(source)
    problems = []
    for group in groups.values():
        several, first = len(group) > 1, group[0]
        s = "s" * several
        remedy = f"map the name{s} in {key}.rename, exclude the variable{s}, or set "
        remedy = "name another checkpoint, " * several + remedy + f"++{key}.missing=init"
        near = {}
        for miss in group[:_NAMED]:
            same = [name for name, tensor in every.items() if tensor.shape == miss.shape] or every
            near[miss.variable] = (similar if several else nearest)(miss.wanted, same)
        problems.append(
            Problem(
                _missing(scaffold, group),
                first.cause or _likely(source, several, taken),
                first.remedy or remedy,
                tuple(f"{name}: {found[0]}" for name, found in near.items() if found)
                if several
                else near[first.variable],
            )
        )
    return problems


def _likely(source: CheckpointSpec, several: bool, taken: int) -> str:
    """Returns why tensors are likely to be missing."""
    held = f"{source.path} holds {len(source.tensors)} tensors"
    if not several:
        return f"{held}, none of that name"
    if taken:
        return f"{held}, {taken} of them used: it seems to belong to another version of the model"
    parts = [re.split("[/.]", name)[0] for name in source.aliases or source.tensors]
    most = [part for part, _ in Counter(parts).most_common()]
    return f"{held}, of {some(most)}: it seems to belong to another model"


def combined(key: str, kind: str, found: Mapping[str, Problem]) -> list[Problem]:
    """Returns the problems of one kind as one.

    The kind is that of `MisfitError`; `found` maps the names of variables to their problems.
    """
    names, problems = list(found), list(found.values())
    first = problems[0]
    if kind.startswith("dtype"):
        return [replace(first, state=f"{first.state}: {some(names)}")]
    if len(problems) == 1:
        return problems
    states = list(dict.fromkeys(each.state.removeprefix(f"{key}: ") for each in problems))
    more = len(states) - _NAMED
    causes = list(dict.fromkeys(each.cause for each in problems))
    if kind == "shape" and len(causes) > 1:
        causes = [f"{SAME_SHAPE}; it seems to belong to a model of another size"]
    return [
        Problem(
            f"{key}: {'; '.join(states[:_NAMED])}" + (f"; and {more:,} more" if more > 0 else ""),
            "; ".join(causes[:_NAMED]),
            first.remedy,
            # What suits all of them, and what names the first as an example.
            tuple(
                each
                for each in first.choices
                if names[0] in each or all(each in problem.choices for problem in problems)
            ),
        )
    ]


def unused_rule(where: str, rule: str, variables: Sequence[str]) -> Problem:
    """The problem of a rule in e.g. `scaffolds.cnn.rename` that none of the variables used."""
    return Problem(
        f"{where}: the rule {rule!r} is never used",
        "it matches no variable that the scaffold claims, or an earlier rule takes them first",
        "fix or delete the rule",
        nearest(rule, variables),
    )


def bad_expressions(scaffold: str, config: ScaffoldConfig) -> list[Problem]:
    """Returns a problem for each rule whose regular expression or replacement is not valid."""
    problems = []
    for part in ("rename", *PATTERN_MAPS):
        for key, value in getattr(config, part).items():
            try:
                Renames({key: value}) if part == "rename" else compile_pattern(key)
            except re.error as error:
                problems.append(bad_expression(f"scaffolds.{scaffold}.{part}", error))
    return problems


def unknown_conversions(scaffold: str, config: ScaffoldConfig) -> list[Problem]:
    """Returns a problem for each name in `convert` that is not a named conversion."""
    return [
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
    """The problem of a regular expression, or a replacement, that Python does not compile."""
    replaces = where.endswith(".rename")
    return Problem(
        f"{where} holds {error.pattern!r}",
        f"not a regular expression{', or not a replacement for one' * replaces}: {error}",
        r"fix it; a replacement names the groups of its rule as \1, \2 or \g<name>"
        if replaces
        else "fix it, or leave out `re:` for a pattern with * and ?",
    )


def some(names: Sequence[str]) -> str:
    """Returns up to three of the names and how many more there are."""
    rest = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
