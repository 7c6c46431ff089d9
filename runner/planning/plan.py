"""The restoration plan: variables + checkpoints + rules -> where every variable's value comes from.

`make_plan` makes it from metadata in four steps; reports show it, and `runner.restoration` carries
it out.

1. Ownership: the scaffolds' patterns and classes of state decide which variables each claims.
2. Matching: `rules`, or the shorter `rename`, `convert`, `transpose` and `vocabulary`, give a
   claimed variable an expression over tensors of the scaffold's checkpoint; `shape` and `cast` make
   its value fit.
3. Collision: of several claims the first or last wins.
4. Expectations: `restoration.expect` is compared with what came out.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.checkpoints.reader import CheckpointSpec
from runner.config.choices import WARM_STARTED, Collision, Expect, StateClass
from runner.config.schema import ScaffoldConfig
from runner.console import some_of
from runner.errors import PlanError, Problem, similar
from runner.planning.comparison import Proof
from runner.planning.matching import TensorChoice, TensorChoices, choose_tensors
from runner.planning.problems import bad_pattern, bad_rules, nearest_patterns
from runner.planning.variables import VariableSpec, assign_owners
from runner.rules.conversions import PadOrSlice, Reshape, Transpose
from runner.rules.patterns import compile_pattern
from runner.rules.source_tensors import SourceTensor

_DIRECTION = re.compile(r"(^|/)(forward|backward)_")


@dataclass(frozen=True)
class Assignment:
    """The source of one variable's value.

    Attributes:
      variable: the variable.
      scaffold: the scaffold that owns it; None when none does.
      source_tensor: the source of its value; None when the initializer gives it.
      notes: what a reader should know, e.g. a cast or why the initializer is used.
      freeze_until_step: the variable does not train before this global step.
      learning_rate_multiplier: multiplies its learning rate.
    """

    variable: VariableSpec
    scaffold: str | None = None
    source_tensor: SourceTensor | None = None
    notes: tuple[str, ...] = ()
    freeze_until_step: int = 0
    learning_rate_multiplier: float = 1.0

    @property
    def needs_initial(self) -> bool:
        """Whether the variable keeps a part of its initial value."""
        return self.source_tensor is not None and self.source_tensor.needs_initial


@dataclass(frozen=True)
class LocatedSources:
    """The checkpoints of the scaffolds, or why they cannot be used.

    Attributes:
      specs: scaffold -> its checkpoint; None where it starts from initializers, or in `problems`.
      problems: scaffold -> why its checkpoint cannot be used; no entry where it can.
    """

    specs: Mapping[str, CheckpointSpec | None]
    problems: Mapping[str, Sequence[Problem]] = field(default_factory=dict)


@dataclass(frozen=True)
class RestorationPlan:
    """The sources of all values: an assignment for every variable, and all problems.

    A variable takes its value either from its initializer or from the tensors of one scaffold's
    checkpoint, converted step by step. A plan is a value: reports only show it, and
    `runner.restoration.engine.restore_values` carries it out if it has no problems.

    Attributes:
      assignments: one for every variable, in the order of the graph.
      sources: scaffold name -> its checkpoint; None where the scaffold starts from initializers.
      unused: scaffold name -> the checkpoint's tensors that no variable took.
      problems: everything that is wrong; a plan with problems is never carried out.
      notes: remarks on the plan as a whole.
      warnings: what is probably wrong, though everything fits.
      finite: the scaffolds in whose tensors NaN and infinity are an error.
      unusable: the scaffolds whose checkpoint cannot be used, see `problems`; where their variables
        would come from is not known.
      proofs: how a model with these values compares with references of its sources.
    """

    assignments: tuple[Assignment, ...]
    sources: Mapping[str, CheckpointSpec | None]
    unused: Mapping[str, tuple[str, ...]]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    finite: frozenset[str] = frozenset()
    unusable: frozenset[str] = frozenset()
    proofs: tuple[Proof, ...] = ()

    def restored(self, scaffold: str) -> tuple[Assignment, ...]:
        """Returns the assignments that take something from the scaffold's checkpoint."""
        return tuple(
            assignment
            for assignment in self.assignments
            if assignment.source_tensor and assignment.scaffold == scaffold
        )

    def require_sound(self) -> None:
        """Raises `PlanError` with every problem, if there is any."""
        if self.problems:
            raise PlanError(*self.problems)


def make_plan(
    variables: Sequence[VariableSpec],
    scaffolds: Mapping[str, ScaffoldConfig],
    located: LocatedSources,
    *,
    collision: Collision = Collision.error,
    expect: Mapping[str, Expect] | None = None,
) -> RestorationPlan:
    """Plans a warm start: variables + checkpoints + rules -> an assignment for every variable.

    It is pure: it reads names, shapes and dtypes (and the vocabulary files), opens no session, and
    returns what stands in the way as problems, all of them, instead of raising the first.

    Args:
      variables: every variable of the graph.
      scaffolds: scaffold name -> its configuration, in order of application.
      located: their checkpoints.
      collision: what happens to a variable that several scaffolds claim.
      expect: a scaffold, or a pattern over variables -> how many of them must be restored.
    """
    states = {spec.full_name: spec.state for spec in variables}
    shared_by = {spec.full_name: spec.shared_by for spec in variables if spec.shared_by}
    addresses = {spec.full_name: spec.address for spec in variables if spec.address}
    ownership = assign_owners(
        states, scaffolds, collision, shared_by=shared_by, addresses=addresses
    )
    claimants = [ownership.claims.get(spec.full_name) for spec in variables]
    owners = ownership.owners
    choices: dict[str, TensorChoices] = {}
    for scaffold, config in scaffolds.items():
        source, unusable = located.specs[scaffold], located.problems.get(scaffold)
        if unusable:
            choices[scaffold] = TensorChoices({}, (*unusable, *bad_rules(scaffold, config)))
        elif source is None:
            choices[scaffold] = TensorChoices({}, ())
        else:
            claimed = [
                spec for spec, by in zip(variables, claimants, strict=True) if scaffold == by
            ]
            choices[scaffold] = choose_tensors(
                scaffold, config, source, variables=claimed, owners=owners, addresses=addresses
            )
    assignments = tuple(
        _assignment(spec, by, scaffolds, choices=choices)
        for spec, by in zip(variables, claimants, strict=True)
    )
    problems = [
        *ownership.problems,
        *(problem for choice in choices.values() for problem in choice.problems),
    ]
    problems += _unmet(assignments, expect or {}, tuple(scaffolds), unusable=located.problems)
    return RestorationPlan(
        assignments=assignments,
        sources=dict(located.specs),
        unused={scaffold: choice.unused for scaffold, choice in choices.items()},
        problems=tuple(problems),
        notes=tuple(_notes(assignments, scaffolds, located, owners=owners)),
        warnings=tuple(_warnings(assignments)),
        finite=frozenset(name for name, config in scaffolds.items() if config.finite),
        unusable=frozenset(located.problems),
    )


def _assignment(
    variable: VariableSpec,
    scaffold: str | None,
    scaffolds: Mapping[str, ScaffoldConfig],
    *,
    choices: Mapping[str, TensorChoices],
) -> Assignment:
    if scaffold is None:
        return Assignment(variable)
    choice = choices[scaffold].by_variable.get(variable.name, TensorChoice())
    config = scaffolds[scaffold]
    trains = variable.trainable
    return Assignment(
        variable,
        scaffold,
        source_tensor=choice.source_tensor,
        notes=tuple(dict.fromkeys(choice.notes)),
        freeze_until_step=config.freeze_until_step if trains else 0,
        learning_rate_multiplier=config.learning_rate_multiplier if trains else 1.0,
    )


def _notes(
    assignments: Sequence[Assignment],
    scaffolds: Mapping[str, ScaffoldConfig],
    located: LocatedSources,
    *,
    owners: Mapping[str, str],
) -> list[str]:
    notes = [
        f"{name}: the checkpoint is optional and absent; its variables are initialised"
        for name, config in scaffolds.items()
        if config.checkpoint is not None
        and located.specs[name] is None
        and name not in located.problems
    ]
    shared = [
        assignment.variable.name
        for assignment in assignments
        if assignment.variable.state is StateClass.optimizer_slots
        and assignment.variable.full_name not in owners
        and assignment.scaffold is None
    ]
    for name, config in scaffolds.items():
        if shared and StateClass.optimizer_slots in config.state and located.specs[name]:
            notes.append(
                f"{some_of(shared, 3)}: the optimizer keeps this for more variables than one "
                "scaffold selects, so it is initialised; "
                f"scaffolds.{name}.variables can include it by name"
            )
            break
    return notes


def _warnings(assignments: Sequence[Assignment]) -> Iterator[str]:
    """Yields a warning for each variable whose tensors fit, but are probably not the right ones."""
    pairs = [(a.variable, a.source_tensor) for a in assignments if a.source_tensor]
    takers: dict[tuple[str, ...], VariableSpec] = {}
    for variable, source_tensor in pairs:
        if not (source_tensor.conversions or _DIRECTION.search(variable.full_name)):
            continue
        name, names = variable.address or variable.full_name, " + ".join(source_tensor.names)
        kinds = [type(step) for step in source_tensor.conversions]
        if variable.flattened and kinds.count(Transpose) == 1 and Reshape not in kinds:
            size = "x".join(map(str, variable.flattened))
            last = (variable.flattened[-1], *variable.flattened[:-1])
            yield (
                f"{name} reads a flattened map of {size}, which PyTorch flattens channels first: "
                f"its rule should be '{names} | linear | unflatten{last}'"
            )
        for step in source_tensor.conversions:
            if isinstance(step, PadOrSlice) and step.dropped:
                yield (
                    f"{name} takes the first {list(step.new)} of {list(step.old)} in {names} and "
                    f"drops the rest: a rule such as '{names} | [2:]' takes others"
                )
        other = takers.setdefault((source_tensor.source, *source_tensor.names), variable)
        if other.full_name != variable.full_name and _DIRECTION.sub("", other.full_name) == (
            _DIRECTION.sub("", variable.full_name)
        ):
            yield f"{name} and {other.full_name}, two directions, take the same {names}"


def _unmet(
    assignments: Sequence[Assignment],
    expect: Mapping[str, Expect],
    scaffolds: Sequence[str],
    *,
    unusable: Container[str],
) -> list[Problem]:
    """Returns a problem for each expectation that the assignments do not meet.

    Variables of scaffolds whose checkpoint is `unusable` may meet any expectation.
    """
    problems = []
    for key, expected in expect.items():
        try:
            concerned = _concerned(assignments, key, scaffolds)
        except ValueError as error:
            problems.append(bad_pattern(f"restoration.expect: {key}", error))
            continue
        if not concerned:
            names = [assignment.variable.name for assignment in assignments]
            others = [scaffold for scaffold in scaffolds if scaffold != key]
            problems.append(
                Problem(
                    f"restoration.expect: {key!r} concerns no variable",
                    "it is neither a scaffold that claims any, nor a pattern that matches one",
                    f"fix it, or delete it: ~restoration.expect.{key}",
                    similar(key, others) or nearest_patterns(key, names),
                )
            )
            continue
        known = [assignment for assignment in concerned if assignment.scaffold not in unusable]
        restored = [a.variable.name for a in known if a.source_tensor]
        initialised = [a.variable.name for a in known if not a.source_tensor]
        unmet = ""
        if expected is Expect.scratch:
            unmet = f"{some_of(restored, 3)} would be restored" if restored else ""
        elif initialised and (expected is Expect.all or len(initialised) == len(concerned)):
            unmet = f"{some_of(initialised, 3)} would be initialised"
        if unmet:
            problems.append(
                Problem(
                    f"restoration.expect.{key} is `{expected.value}`, but {unmet}",
                    "`all` and `some` ask for values from a checkpoint, `scratch` for initial ones",
                    "fix the scaffold's checkpoint, rename or missing, or the expectation",
                    tuple(choice.value for choice in Expect if choice is not expected),
                )
            )
    return problems


def _concerned(
    assignments: Sequence[Assignment], key: str, scaffolds: Sequence[str]
) -> list[Assignment]:
    if key in scaffolds:
        return [assignment for assignment in assignments if assignment.scaffold == key]
    pattern = compile_pattern(key)
    matched = [
        assignment
        for assignment in assignments
        if pattern.matches(assignment.variable.full_name)
        or pattern.matches(assignment.variable.address)
    ]
    # `cnn/*` matches optimizer slots too, which a warm start brings only on request.
    requested = [
        assignment
        for assignment in matched
        if assignment.scaffold is not None or assignment.variable.state in WARM_STARTED
    ]
    return requested or matched
