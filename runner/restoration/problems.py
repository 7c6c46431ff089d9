"""The problems of a plan, in the words of the person who has to fix them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config.composition import override, yaml
from runner.config.schema import ScaffoldConfig
from runner.errors import Problem, nearest, ranked
from runner.restoration.named_conversions import NAMED_CONVERSIONS
from runner.restoration.patterns import PATTERN_MAPS, Renames, compile_pattern

# Of one kind so many problems are shown one by one; the rest is summed up in one.
SHOWN = 24
# Of more than these so many get the nearest names: comparing with 50,000 names takes a second.
_WITH_NAMES = 3
# A rename is suggested if so many prefixes or fewer do it.
_PREFIXES = 4


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
    taken: frozenset[str],
) -> list[Problem]:
    """Returns the problems of all that is missing: one, with its remedy, if a rename finds it.

    `found` are the variables whose tensors have their own names, `taken` the tensors that variables
    take.
    """
    own = [miss for miss in misses if miss.renameable]
    every = _all_names(source)
    free = {name for name, tensor in every.items() if tensor.name not in taken}
    rules = suggest([miss.variable for miss in own], found, free)
    if rules is None:
        return _one_by_one(scaffold, source, misses)
    lost = {miss.variable for miss in own}
    rest = [miss for miss in misses if not miss.renameable and miss.follows not in lost]
    problems = _one_by_one(scaffold, source, rest)
    return [_with_rename(scaffold, source, own, rules), *problems]


def suggest(
    missing: Sequence[str], found: Iterable[str], tensors: Iterable[str]
) -> dict[str, str] | None:
    """Returns prefix renames that map every missing name to a tensor, e.g. `{cnn/: features/}`.

    Args:
      missing: the names that must become names of tensors.
      found: names that must stay as they are, because their tensors are found.
      tensors: the names of the tensors that no variable takes.

    Returns:
      The rename rules, or None when no change of one prefix finds all that is missing.
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
    names = some([miss.variable for miss in misses])
    return Problem(
        f"scaffolds.{scaffold}: no tensors for {len(misses)} variables, {names}"
        if len(misses) > 1
        else f"scaffolds.{scaffold}: no tensor {misses[0].wanted!r} for the variable {names}",
        f"{source.path} holds {len(source.tensors)} tensors, none named "
        f"{some([miss.wanted for miss in misses])}; a rename finds all that is missing",
        how,
        tuple(Renames(rules).apply(miss.variable) for miss in misses[:3]),
    )


def _one_by_one(scaffold: str, source: CheckpointSpec, misses: Sequence[Miss]) -> list[Problem]:
    key, every = f"scaffolds.{scaffold}", _all_names(source)

    def choices(at: int, miss: Miss) -> tuple[str, ...]:
        if len(misses) > SHOWN and at >= _WITH_NAMES:
            return ()
        same = [name for name, tensor in every.items() if tensor.shape == miss.shape]
        return nearest(miss.wanted, same or every)

    remedy = f"map the name in {key}.rename, exclude the variable, or set ++{key}.missing=init"
    problems = {
        miss.variable: Problem(
            f"{key}: no tensor {miss.wanted!r} for the variable {miss.variable}",
            miss.cause or f"{source.path} holds {len(source.tensors)} tensors, none of that name",
            miss.remedy or remedy,
            choices(at, miss),
        )
        for at, miss in enumerate(misses)
    }
    return combined(key, "missing", problems)


def combined(key: str, kind: str, found: Mapping[str, Problem]) -> list[Problem]:
    """Returns the problems of one kind: those of one dtype as one, of many the rest as one.

    The kind is that of `MisfitError`; `found` maps the names of variables to their problems.
    """
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


def plural(count: int, noun: str) -> str:
    """Returns e.g. `1 variable` or `1,200 variables`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
