"""Decides which scaffold owns each variable."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.config import Collision, ScaffoldConfig
from runner.errors import Problem, nearest
from runner.restoration.selection import select


@dataclass(frozen=True)
class Ownership:
    """The outcome of matching every scaffold's patterns.

    Attributes:
      owners: variable name -> scaffold name; a variable that none owns is absent.
      problems: patterns that match nothing or are not valid, scaffolds that own nothing, and
        variables claimed twice.
    """

    owners: Mapping[str, str]
    problems: tuple[Problem, ...]

    def frozen(self, scaffolds: Mapping[str, ScaffoldConfig]) -> frozenset[str]:
        """Returns the owned variables whose scaffold is not trainable."""
        return frozenset(
            name for name, owner in self.owners.items() if not scaffolds[owner].trainable
        )


def assign_owners(
    names: Sequence[str], scaffolds: Mapping[str, ScaffoldConfig], collision: Collision
) -> Ownership:
    """Matches the scaffolds' patterns, in order, over the model's variables.

    Args:
      names: the names of the variables that a warm start may bring.
      scaffolds: scaffold name -> its configuration, in order of application.
      collision: what happens to a variable that two scaffolds select.
    """
    claims: dict[str, list[str]] = {}
    problems: list[Problem] = []
    for scaffold, config in scaffolds.items():
        variables = config.variables
        try:
            selected = select(names, variables.include, variables.exclude)
        except re.error as error:
            problems.append(_bad_expression(f"scaffolds.{scaffold}.variables", error))
            continue
        unmatched = [_unmatched(scaffold, pattern, names) for pattern in selected.unused]
        problems += unmatched
        if not selected.names and not unmatched:
            problems.append(_owns_nothing(scaffold))
        for name in selected.names:
            claims.setdefault(name, []).append(scaffold)
    if collision is Collision.error:
        problems += _collisions(claims)
    chosen = -1 if collision is Collision.last else 0
    return Ownership({name: claims[name][chosen] for name in claims}, tuple(problems))


def _bad_expression(where: str, error: re.error) -> Problem:
    return Problem(
        f"{where} holds {error.pattern!r}",
        f"not a regular expression: {error}",
        "mend it, or leave out `re:` for a pattern with * and ?",
    )


def _unmatched(scaffold: str, pattern: str, names: Sequence[str]) -> Problem:
    return Problem(
        f"scaffolds.{scaffold}.variables: {pattern!r} matches no variable of the model",
        "patterns match whole names",
        f"mend the pattern, or delete the scaffold: ~scaffolds.{scaffold}",
        nearest(pattern, names),
    )


def _owns_nothing(scaffold: str) -> Problem:
    return Problem(
        f"scaffolds.{scaffold} owns no variable",
        "nothing is included, or all of it is excluded again",
        f"mend scaffolds.{scaffold}.variables, or delete the scaffold: ~scaffolds.{scaffold}",
    )


def _collisions(claims: Mapping[str, Sequence[str]]) -> list[Problem]:
    by_scaffolds: dict[tuple[str, ...], list[str]] = {}
    for name, scaffolds in claims.items():
        if len(scaffolds) > 1:
            by_scaffolds.setdefault(tuple(scaffolds), []).append(name)
    return [
        Problem(
            f"scaffolds {' and '.join(scaffolds)} claim the same variables: {_some(names)}",
            "a variable's value comes from one place",
            "exclude it from one, or set restoration.collision",
            ("restoration.collision=first", "restoration.collision=last"),
        )
        for scaffolds, names in by_scaffolds.items()
    ]


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
