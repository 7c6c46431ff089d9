"""Compares what a plan restores with what `restoration.expect` says."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence

from runner.config.choices import Expect
from runner.errors import Problem
from runner.restoration.ownership import bad_expression, some
from runner.restoration.patterns import compile_pattern
from runner.restoration.plan import Assignment
from runner.restoration.suggestions import nearest_names
from runner.restoration.variables import WARM_STARTED

_CAUSES = {
    Expect.all: "restoration.expect says that all come from a checkpoint",
    Expect.some: "restoration.expect says that at least one comes from a checkpoint",
    Expect.scratch: "restoration.expect says that all start from their initializers",
}


def coverage_problems(
    assignments: Sequence[Assignment],
    expect: Mapping[str, Expect],
    scaffolds: Sequence[str],
    unusable: Container[str] = (),
) -> list[Problem]:
    """Returns a problem for each expectation that the assignments do not meet.

    Args:
      assignments: one for every variable.
      expect: a scaffold, or a pattern over variables -> what must become of its variables.
      scaffolds: the names of the scaffolds.
      unusable: those whose checkpoint cannot be used, so that nothing can be said of theirs.
    """
    problems = []
    for key, expected in expect.items():
        try:
            concerned = _concerned(assignments, key, scaffolds)
        except re.error as error:
            problems.append(bad_expression("restoration.expect", error))
            continue
        if not concerned:
            problems.append(_unknown(key, scaffolds))
            continue
        known = [each for each in concerned if each.scaffold not in unusable]
        restored = [each.variable.name for each in known if each.pieces]
        initialised = [each.variable.name for each in known if not each.pieces]
        if expected is Expect.scratch:
            unmet = f"{some(restored)} would be restored" if restored else ""
        else:
            some_may_be = restored or len(known) < len(concerned)
            met = not initialised if expected is Expect.all else some_may_be
            unmet = "" if met else f"{some(initialised)} would be initialised"
        if unmet:
            problems.append(_unmet(key, expected, unmet))
    return problems


def _concerned(
    assignments: Sequence[Assignment], key: str, scaffolds: Sequence[str]
) -> list[Assignment]:
    if key in scaffolds:
        return [
            each
            for each in assignments
            if each.scaffold == key or any(piece.source == key for piece in each.pieces)
        ]
    pattern = compile_pattern(key)
    matched = [each for each in assignments if pattern.fullmatch(each.variable.full_name)]
    # `cnn/*` matches optimizer slots too, which a warm start brings only where it is asked to.
    asked_for = [
        each for each in matched if each.scaffold is not None or each.variable.state in WARM_STARTED
    ]
    return asked_for or matched


def _unmet(key: str, expected: Expect, state: str) -> Problem:
    return Problem(
        f"restoration.expect.{key} is `{expected.value}`, but {state}",
        _CAUSES[expected],
        "mend the scaffold's checkpoint, rename or missing, or the expectation",
        tuple(each.value for each in Expect if each is not expected),
    )


def _unknown(key: str, scaffolds: Sequence[str]) -> Problem:
    return Problem(
        f"restoration.expect: {key!r} concerns no variable",
        "it is neither a scaffold that claims any, nor a pattern that matches a variable",
        f"mend it, or delete it: ~restoration.expect.{key}",
        nearest_names(key, scaffolds),
    )
