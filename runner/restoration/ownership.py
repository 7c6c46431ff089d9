"""Decides which scaffolds claim each variable."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.config.choices import Collision, StateChoice
from runner.config.schema import ScaffoldConfig
from runner.errors import Problem
from runner.restoration.patterns import select
from runner.restoration.states import CHOICES, owners_of
from runner.restoration.suggestions import nearest_names
from runner.restoration.variables import StateClass

_BY_DEFAULT = (StateChoice.weights, StateChoice.batch_norm)


@dataclass(frozen=True)
class Ownership:
    """The outcome of matching every scaffold's patterns.

    Attributes:
      claims: variable name -> the scaffolds whose checkpoints give its value, more than one only
        with `collision: mean`; a variable that no scaffold claims is absent.
      problems: patterns that match nothing or are not valid, scaffolds that own nothing, and
        variables claimed twice.
    """

    claims: Mapping[str, tuple[str, ...]]
    problems: tuple[Problem, ...]

    @property
    def owners(self) -> dict[str, str]:
        """Variable name -> the scaffold whose settings hold for it: the first that claims it."""
        return {name: scaffolds[0] for name, scaffolds in self.claims.items()}

    def frozen(self, scaffolds: Mapping[str, ScaffoldConfig]) -> frozenset[str]:
        """Returns the owned variables whose scaffold is not trainable."""
        return frozenset(
            name for name, owner in self.owners.items() if not scaffolds[owner].trainable
        )


def assign_owners(
    states: Mapping[str, StateClass],
    scaffolds: Mapping[str, ScaffoldConfig],
    collision: Collision,
    kept_for: Mapping[str, Sequence[str]] | None = None,
) -> Ownership:
    """Matches the scaffolds' patterns, in order, over the variables.

    A scaffold claims what its patterns match, of the classes in its `state`. Optimizer slots and
    moving averages go with their variable unless a pattern names them, what an optimizer keeps for
    several variables with all of these together, and the global step with the class alone unless a
    pattern excludes it.

    Args:
      states: variable name -> its class of state.
      scaffolds: scaffold name -> its configuration, in order of application.
      collision: what happens to a variable that several scaffolds claim.
      kept_for: what an optimizer keeps for several variables -> these.
    """
    kept_for = kept_for or {}
    claims: dict[str, list[str]] = {}
    problems: list[Problem] = []
    owners = {name: owner.name for name, owner in owners_of(states).items()}
    for scaffold, config in scaffolds.items():
        variables = config.variables
        try:
            matched = select(states, variables.include, variables.exclude)
        except re.error as error:
            problems.append(bad_expression(f"scaffolds.{scaffold}.variables", error))
            continue
        unmatched = [_unmatched(scaffold, pattern, states) for pattern in matched.unused]
        problems += unmatched
        claimed = [
            name
            for name, state in states.items()
            if CHOICES.get(state) in config.state
            and not matched.excluded.intersection((name, owners.get(name, name)))
            and (
                name in matched.selected
                or owners.get(name) in matched.selected
                or (name in kept_for and matched.selected.issuperset(kept_for[name]))
                or state is StateClass.GLOBAL_STEP
            )
        ]
        if not claimed and not matched.selected and not unmatched:
            problems.append(_owns_nothing(scaffold))
        elif not unmatched:
            problems += _empty_classes(scaffold, config, [states[name] for name in claimed])
        for name in claimed:
            claims.setdefault(name, []).append(scaffold)
    several = {name: claimants for name, claimants in claims.items() if len(claimants) > 1}
    if collision is Collision.error:
        problems += _collisions(several)
    if collision is Collision.mean:
        problems += _disagreements(several, scaffolds)
        return Ownership({name: tuple(claims[name]) for name in claims}, tuple(problems))
    chosen = -1 if collision is Collision.last else 0
    return Ownership({name: (claims[name][chosen],) for name in claims}, tuple(problems))


def bad_expression(where: str, error: re.error) -> Problem:
    """The problem of a regular expression that Python does not compile."""
    return Problem(
        f"{where} holds {error.pattern!r}",
        f"not a regular expression: {error}",
        "mend it, or leave out `re:` for a pattern with * and ?",
    )


def _unmatched(scaffold: str, pattern: str, states: Mapping[str, StateClass]) -> Problem:
    names = [name for name, state in states.items() if CHOICES.get(state) in _BY_DEFAULT]
    names = names or list(states)
    above = {f"{name[:end]}/*" for name in names for end in _ends(name)} if "*" in pattern else ()
    return Problem(
        f"scaffolds.{scaffold}.variables: {pattern!r} matches no variable of the model",
        "patterns match whole names",
        f"mend the pattern, or delete the scaffold: ~scaffolds.{scaffold}",
        nearest_names(pattern, [*above, *names]),
    )


def _owns_nothing(scaffold: str) -> Problem:
    return Problem(
        f"scaffolds.{scaffold} owns no variable",
        "nothing is included, or all of it is excluded again",
        f"mend scaffolds.{scaffold}.variables, or delete the scaffold: ~scaffolds.{scaffold}",
    )


def _ends(name: str) -> list[int]:
    return [place for place, letter in enumerate(name) if letter == "/"]


def _empty_classes(
    scaffold: str, config: ScaffoldConfig, claimed: Sequence[StateClass]
) -> list[Problem]:
    present = {CHOICES[state] for state in claimed}
    if not present:
        return [
            Problem(
                f"scaffolds.{scaffold} owns no variable",
                "its patterns match only variables of other classes than "
                + ", ".join(each.value for each in config.state),
                f"mend scaffolds.{scaffold}.variables, or add the class to its `state`",
                tuple(each.value for each in StateChoice),
            )
        ]
    return [
        Problem(
            f"scaffolds.{scaffold}.state: no selected variable is of the class {choice.value}",
            "the graph keeps no such state for the variables that the patterns match",
            "delete it from `state`, or mend the patterns",
            tuple(each.value for each in StateChoice if each in present),
        )
        for choice in config.state
        if choice not in present and choice not in _BY_DEFAULT
    ]


def _collisions(several: Mapping[str, Sequence[str]]) -> list[Problem]:
    by_scaffolds: dict[tuple[str, ...], list[str]] = {}
    for name, scaffolds in several.items():
        by_scaffolds.setdefault(tuple(scaffolds), []).append(name)
    return [
        Problem(
            f"scaffolds {' and '.join(scaffolds)} claim the same variables: {some(names)}",
            "a variable's value comes from one place",
            "exclude it from one, or set restoration.collision",
            tuple(f"restoration.collision={each}" for each in ("first", "last", "mean")),
        )
        for scaffolds, names in by_scaffolds.items()
    ]


def _disagreements(
    several: Mapping[str, Sequence[str]], scaffolds: Mapping[str, ScaffoldConfig]
) -> list[Problem]:
    problems = {}
    for name, claimants in several.items():
        for key in ("trainable", "freeze_until_step", "learning_rate_multiplier"):
            values = {each: getattr(scaffolds[each], key) for each in claimants}
            if len(set(values.values())) > 1 and (key, *claimants) not in problems:
                said = ", ".join(f"{each} says {value}" for each, value in values.items())
                problems[(key, *claimants)] = Problem(
                    f"scaffolds {' and '.join(claimants)} share {name}, but not `{key}`: {said}",
                    "with restoration.collision=mean they own the variable together",
                    f"give both the same `{key}`, or set another restoration.collision",
                    ("restoration.collision=first", "restoration.collision=last"),
                )
    return list(problems.values())


def some(names: Sequence[str]) -> str:
    """Returns up to three of the names and how many more there are."""
    rest = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
