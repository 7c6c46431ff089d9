"""The problems of a scaffold's rules, and how many problems of one kind are told."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.config import ScaffoldConfig
from runner.errors import Problem
from runner.restoration.fitting import PATTERN_MAPS
from runner.restoration.missing import SHOWN
from runner.restoration.named_conversions import NAMED_CONVERSIONS
from runner.restoration.nearest_names import nearest_names
from runner.restoration.ownership import bad_expression, some
from runner.restoration.renames import Renames
from runner.restoration.selection import compile_pattern


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
