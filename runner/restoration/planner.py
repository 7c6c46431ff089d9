"""Plans from metadata alone where every variable's value comes from, and finds all problems."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from runner.checkpoints.reader import CheckpointSpec
from runner.config.choices import Collision, Expect, Missing, StateChoice
from runner.config.schema import ScaffoldConfig
from runner.errors import Problem
from runner.restoration.coverage import coverage_problems
from runner.restoration.fitting import ReadVocabulary
from runner.restoration.matching import Match, match
from runner.restoration.ownership import assign_owners, some
from runner.restoration.plan import Assignment, RestorationPlan
from runner.restoration.states import CHOICES, Owner, owners_of
from runner.restoration.variables import StateClass, VariableSpec
from runner.restoration.vocabulary import read_vocabulary


def make_plan(
    variables: Sequence[VariableSpec],
    scaffolds: Mapping[str, ScaffoldConfig],
    sources: Mapping[str, CheckpointSpec | None],
    collision: Collision = Collision.error,
    expect: Mapping[str, Expect] | None = None,
    vocabulary: ReadVocabulary = read_vocabulary,
    unusable: Mapping[str, Sequence[Problem]] | None = None,
) -> RestorationPlan:
    """Plans from metadata alone.

    Args:
      variables: every variable of the graph.
      scaffolds: scaffold name -> its configuration, in order of application.
      sources: for each of these scaffolds its checkpoint, or None to initialise.
      collision: what happens to a variable that several scaffolds claim.
      expect: a scaffold, or a pattern over variables -> how many of them must be restored.
      vocabulary: reads the tokens of a vocabulary file.
      unusable: scaffold -> why its checkpoint cannot be used, where `sources` says None for that.

    Raises:
      ValueError: when `sources` does not name exactly the scaffolds.
    """
    if set(sources) != set(scaffolds):
        raise ValueError(f"sources {sorted(sources)} are not for scaffolds {sorted(scaffolds)}")
    unusable = unusable or {}
    states = {each.full_name: each.state for each in variables}
    owners = owners_of(states)
    kept_for = {each.full_name: each.kept_for for each in variables if each.kept_for}
    ownership = assign_owners(states, scaffolds, collision, kept_for)
    problems = list(ownership.problems)
    matches: dict[str, Mapping[str, Match]] = {}
    unused: dict[str, tuple[str, ...]] = {}
    claimed: dict[str, list[VariableSpec]] = {scaffold: [] for scaffold in scaffolds}
    for variable in variables:
        for scaffold in ownership.claims.get(variable.full_name, ()):
            claimed[scaffold].append(variable)
    for scaffold, config in scaffolds.items():
        source = sources[scaffold]
        matches[scaffold], unused[scaffold] = {}, ()
        if scaffold in unusable:
            problems += unusable[scaffold]
            problems += _rule_problems(scaffold, config, claimed[scaffold], owners, vocabulary)
        elif source is not None:
            found = match(scaffold, config, source, claimed[scaffold], owners, vocabulary)
            matches[scaffold] = found.by_variable
            problems += found.problems
            pieces = [each.piece for each in found.by_variable.values() if each.piece]
            taken = {name for piece in pieces for name in piece.names}
            unused[scaffold] = tuple(name for name in source.tensors if name not in taken)
    assignments = tuple(
        _assignment(each, ownership.claims.get(each.full_name, ()), scaffolds, matches)
        for each in variables
    )
    problems += coverage_problems(assignments, expect or {}, tuple(scaffolds), unusable)
    return RestorationPlan(
        assignments,
        dict(sources),
        unused,
        tuple(problems),
        tuple(_notes(assignments, scaffolds, sources, states, unusable)),
        frozenset(name for name, config in scaffolds.items() if config.finite),
        frozenset(unusable),
    )


def _rule_problems(
    scaffold: str,
    config: ScaffoldConfig,
    variables: Sequence[VariableSpec],
    owners: Mapping[str, Owner],
    vocabulary: ReadVocabulary,
) -> tuple[Problem, ...]:
    """Returns what is wrong with a scaffold's rules whatever its checkpoint holds."""
    lenient, nothing = replace(config, missing=Missing.init), CheckpointSpec("", None, {})
    return match(scaffold, lenient, nothing, variables, owners, vocabulary).problems


def _assignment(
    variable: VariableSpec,
    claimants: Sequence[str],
    scaffolds: Mapping[str, ScaffoldConfig],
    matches: Mapping[str, Mapping[str, Match]],
) -> Assignment:
    if not claimants:
        return Assignment(variable)
    found = [matches[scaffold].get(variable.name, Match()) for scaffold in claimants]
    pieces = tuple(each.piece for each in found if each.piece)
    notes = tuple(note for each in found for note in each.notes)
    if len(pieces) > 1:
        notes = (f"mean of {len(pieces)} checkpoints", *notes)
    config = scaffolds[claimants[0]]
    trains = variable.trainable
    return Assignment(
        variable,
        claimants[0],
        pieces,
        tuple(dict.fromkeys(notes)),
        config.freeze_until_step if trains else 0,
        config.learning_rate_multiplier if trains else 1.0,
    )


def _notes(
    assignments: Sequence[Assignment],
    scaffolds: Mapping[str, ScaffoldConfig],
    sources: Mapping[str, CheckpointSpec | None],
    states: Mapping[str, StateClass],
    unusable: Container[str],
) -> list[str]:
    notes = [
        f"{scaffold}: the checkpoint is optional and absent; its variables are initialised"
        for scaffold, config in scaffolds.items()
        if config.checkpoint is not None and sources[scaffold] is None and scaffold not in unusable
    ]
    with_slots = [
        scaffold
        for scaffold, config in scaffolds.items()
        if StateChoice.optimizer_slots in config.state and sources[scaffold] is not None
    ]
    followers = owners_of(states)
    shared = [
        each.variable.name
        for each in assignments
        if CHOICES.get(each.variable.state) is StateChoice.optimizer_slots
        and each.variable.full_name not in followers
        and each.scaffold is None
    ]
    if with_slots and shared:
        notes.append(
            f"{some(shared)}: the optimizer keeps this for more variables than one scaffold "
            "selects, so it starts anew; include it by name in "
            f"scaffolds.{with_slots[0]}.variables to restore it"
        )
    return notes
