"""Which scaffolds claim each variable: their patterns and classes of state over its name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.config.choices import Collision, StateChoice
from runner.config.schema import ScaffoldConfig
from runner.errors import Problem, nearest
from runner.restoration.patterns import Selected, select
from runner.restoration.problems import bad_expression, some
from runner.restoration.variables import CHOICES, StateClass, owners_of

_BY_DEFAULT = (StateChoice.weights, StateChoice.batch_norm)


@dataclass(frozen=True)
class Ownership:
    """Which scaffolds claim which variables.

    Attributes:
      claims: variable name -> the scaffolds whose checkpoints give its value, more than one only
        with `collision: mean`; the first is its owner, whose settings hold for it. A variable that
        no scaffold claims is absent.
      problems: patterns that match nothing or are not valid, scaffolds that own nothing, and
        variables claimed twice.
    """

    claims: Mapping[str, tuple[str, ...]]
    problems: tuple[Problem, ...]


def assign_owners(
    states: Mapping[str, StateClass],
    scaffolds: Mapping[str, ScaffoldConfig],
    collision: Collision,
    kept_for: Mapping[str, Sequence[str]] | None = None,
) -> Ownership:
    """Matches the scaffolds' patterns, in order, over the variables.

    Args:
      states: variable name -> its class of state.
      scaffolds: scaffold name -> its configuration, in order of application.
      collision: what happens to a variable that several scaffolds claim.
      kept_for: what an optimizer keeps for several variables -> those variables, if any.
    """
    claims: dict[str, list[str]] = {}
    problems: list[Problem] = []
    for scaffold, config in scaffolds.items():
        try:
            matched = select(states, config.variables.include, config.variables.exclude)
        except re.error as error:
            problems.append(bad_expression(f"scaffolds.{scaffold}.variables", error))
            continue
        claimed = _claimed(config, matched, states, kept_for or {})
        for name in claimed:
            claims.setdefault(name, []).append(scaffold)
        if matched.unused:
            problems += [_unmatched(scaffold, pattern, states) for pattern in matched.unused]
        elif not matched.selected and not claimed:
            problems.append(_owns_nothing(scaffold))
        else:
            problems += _empty_classes(scaffold, config, [states[name] for name in claimed])
    several = {name: claimants for name, claimants in claims.items() if len(claimants) > 1}
    if collision is Collision.mean:
        problems += _disagreements(several, scaffolds)
        return Ownership({name: tuple(claims[name]) for name in claims}, tuple(problems))
    if collision is Collision.error:
        problems += _collisions(several)
    chosen = -1 if collision is Collision.last else 0
    return Ownership({name: (claims[name][chosen],) for name in claims}, tuple(problems))


def _claimed(
    config: ScaffoldConfig,
    matched: Selected,
    states: Mapping[str, StateClass],
    kept_for: Mapping[str, Sequence[str]],
) -> list[str]:
    """Returns the variables that a scaffold claims, all of the classes in its `state`.

    Slots and moving averages follow their variable unless a pattern names them; what an optimizer
    keeps for several variables is claimed with all of them together; the global step is claimed by
    its class alone unless a pattern excludes it.
    """
    owners = {name: owner.name for name, owner in owners_of(states).items()}
    return [
        name
        for name, state in states.items()
        if CHOICES.get(state) in config.state
        and not matched.excluded.intersection((name, owners.get(name, name)))
        and (
            name in matched.selected
            or owners.get(name) in matched.selected
            or (bool(kept_for.get(name)) and matched.selected.issuperset(kept_for[name]))
            or state is StateClass.GLOBAL_STEP
        )
    ]


def _unmatched(scaffold: str, pattern: str, states: Mapping[str, StateClass]) -> Problem:
    names = [name for name, state in states.items() if CHOICES.get(state) in _BY_DEFAULT]
    names = names or list(states)
    parts = {f"{name[:at]}/*" for name in names for at, each in enumerate(name) if each == "/"}
    return Problem(
        f"scaffolds.{scaffold}.variables: {pattern!r} matches no variable of the model",
        "patterns match whole names",
        f"fix the pattern, or delete the scaffold: ~scaffolds.{scaffold}",
        nearest(pattern, [*(parts if "*" in pattern else ()), *names]),
    )


def _owns_nothing(scaffold: str) -> Problem:
    return Problem(
        f"scaffolds.{scaffold} owns no variable",
        "nothing is included, or all of it is excluded again",
        f"fix scaffolds.{scaffold}.variables, or delete the scaffold: ~scaffolds.{scaffold}",
    )


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
                f"fix scaffolds.{scaffold}.variables, or add the class to its `state`",
                tuple(choice.value for choice in StateChoice),
            )
        ]
    return [
        Problem(
            f"scaffolds.{scaffold}.state: no selected variable is of the class {choice.value}",
            "the graph keeps no such state for the variables that the patterns match",
            "delete it from `state`, or fix the patterns",
            tuple(choice.value for choice in StateChoice if choice in present),
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
                given = ", ".join(f"{each} has {value}" for each, value in values.items())
                problems[(key, *claimants)] = Problem(
                    f"scaffolds {' and '.join(claimants)} share {name}, but not `{key}`: {given}",
                    "with restoration.collision=mean they own the variable together",
                    f"give both the same `{key}`, or set another restoration.collision",
                    ("restoration.collision=first", "restoration.collision=last"),
                )
    return list(problems.values())
